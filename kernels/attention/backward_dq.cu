// dQ = scale * dS K, the first of the two backward passes.
//
//   s = the forward's chain;  p = ex2(fma(s, c, -lse)), 0 where masked;  dP = dO V^T, one chain
//   over Dh from +0 dS = p * (dP - delta);  dQ = scale * (one chain over the sequence's keys from
//   position 0, k16 steps ascending, of bf16(dS) K), rounded once.
// A row depends on its own query and the keys it sees: masked keys add exact zeros, so blocks and
// tiles are free.
//
// Persistent CTAs claim (128 query rows, head). Two consumer warpgroups of 64 rows; S and dP of the
// next tile and dQ of this one are queued together, so a warpgroup's tensor work runs under the
// other one's softmax without any turns.

#include "kernels/attention/backward.cuh"
#include "kernels/attention/rows.cuh"

namespace rlk::cuda::attn {
namespace {

constexpr int kKeys = 64;  // a tile: S, dP, dQ and the packed dS stay in 144 registers
constexpr int kConsumers = 2;
constexpr int kRows = kBlock / kConsumers;
constexpr int kConsumerWarps = kConsumers * 4;
constexpr int kThreads = (kConsumers + 1) * 128;
static_assert(kRows == 64);

struct DqArgs {
  WorkList work;
  const int32_t* seq_begin;
  const float* lse;
  const float* delta;
  bf16* dq;
  int H, KH;
  float c, scale;
};

template <int Dh>
struct Smem {
  static constexpr int kStages = 3;
  static constexpr int kTileBytes = kKeys * Dh * 2;
  static constexpr int kPanel = kBlock * kRowBytes;  // of Q and dO
  static constexpr int kKeyPanel = kKeys * kRowBytes;
  static constexpr int kQ = 0;
  static constexpr int kDo = kQ + kBlock * Dh * 2;
  static constexpr int kK = kDo + kBlock * Dh * 2;
  static constexpr int kV = kK + kStages * kTileBytes;
  static constexpr int kPatch = kV + kStages * kTileBytes;
  static constexpr int kItem = kPatch + kConsumerWarps * kRowPatchBytes<Dh>;
  static constexpr int kBarriers = kItem + 32;
  static constexpr int kBytes = kBarriers + (2 + 4 * kStages) * 8 + 1024;
  static_assert(kBytes <= kMaxSharedBytes);

  uint32_t base;
  __device__ uint32_t q_full() const { return base + kBarriers; }
  __device__ uint32_t q_empty() const { return q_full() + 8; }
  __device__ uint32_t k_full(int s) const { return q_full() + 16 + s * 32; }
  __device__ uint32_t k_empty(int s) const { return k_full(s) + 8; }
  __device__ uint32_t v_full(int s) const { return k_full(s) + 16; }
  __device__ uint32_t v_empty(int s) const { return k_full(s) + 24; }
  __device__ uint32_t k(int s) const { return base + kK + s * kTileBytes; }
  __device__ uint32_t v(int s) const { return base + kV + s * kTileBytes; }
};

// head -1 ends the kernel; input_row: of the block's first query in q, d_o, lse, delta.
struct Item {
  int head, len, position, row;
  int input_row, unused[3];
};

template <int Dh>
__device__ void produce(const Smem<Dh>& smem, const RowMaps& maps, const DqArgs& a) {
  using L = Smem<Dh>;
  const int lane = lane_id(), heads_per_kv = a.H / a.KH;
  Ring<L::kStages> k_ring, v_ring;
  uint32_t q_phase = 0;
  WorkQueue work(a.work, a.KH, heads_per_kv);

  const auto hand_over = [&](const Item& item) {
    mbar_wait(smem.q_empty(), q_phase ^ 1);
    q_phase ^= 1;
    if (lane == 0) {
      st_shared(smem.base + L::kItem,
                make_uint4(static_cast<uint32_t>(item.head), static_cast<uint32_t>(item.len),
                           static_cast<uint32_t>(item.position), static_cast<uint32_t>(item.row)));
      st_shared(smem.base + L::kItem + 16, static_cast<uint32_t>(item.input_row));
      if (item.head < 0) {
        mbar_arrive(smem.q_full());
      } else {
        mbar_arrive_expect(smem.q_full(), 2 * kBlock * Dh * 2);
        load_rows<Dh>(smem.base + L::kQ, L::kPanel, &maps.q, smem.q_full(), item.head,
                      item.input_row);
        load_rows<Dh>(smem.base + L::kDo, L::kPanel, &maps.d_o, smem.q_full(), item.head,
                      item.input_row);
      }
    }
    __syncwarp();
  };

  while (!work.done()) {
    const AttentionSegment block = work.block;
    const int head = work.head, kv_head = head / heads_per_kv;
    const int first_row = a.seq_begin[block.seq],
              tiles = (block.position + block.len - 1) / kKeys + 1;
    work.claim();
    hand_over({head, block.len, block.position, block.row, first_row + block.position, {}});
    for (int j = 0; j < tiles; ++j) {
      mbar_wait(smem.k_empty(k_ring.stage), k_ring.phase ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(smem.k_full(k_ring.stage), L::kTileBytes);
        load_rows<Dh>(smem.k(k_ring.stage), L::kKeyPanel, &maps.k, smem.k_full(k_ring.stage),
                      kv_head, first_row + j * kKeys);
      }
      k_ring.advance();
      mbar_wait(smem.v_empty(v_ring.stage), v_ring.phase ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(smem.v_full(v_ring.stage), L::kTileBytes);
        load_rows<Dh>(smem.v(v_ring.stage), L::kKeyPanel, &maps.v, smem.v_full(v_ring.stage),
                      kv_head, first_row + j * kKeys);
      }
      v_ring.advance();
      __syncwarp();
    }
    work.next();
  }
  hand_over({-1, 0, 0, 0, 0, {}});
}

template <int Dh>
struct Consumer {
  using L = Smem<Dh>;
  const Smem<Dh>& smem;
  const DqArgs& a;
  const int group, warp, lane;
  Ring<L::kStages> k_next, k_done, v_ring;
  float s[kKeys / 2], dp[kKeys / 2], dq[Dh / 2];
  uint32_t ds[kKeys / 16][4];
  float minus_lse[2], delta[2];  // of rows lane/4 and lane/4 + 8 of the warp's 16

  __device__ Consumer(const Smem<Dh>& smem_, const DqArgs& a_)
      : smem(smem_), a(a_), group(warp_id() / 4), warp(warp_id() % 4), lane(lane_id()) {}

  // S = Q K^T and dP = dO V^T of the next tile; its K stays until dQ has used it.
  __device__ void start_scores() {
    const int rows = group * (kRows * kRowBytes);
    mbar_wait(smem.k_full(k_next.stage), k_next.phase);
    multiply(s, smem.base + L::kQ + rows, smem.k(k_next.stage));
    k_next.advance();
    mbar_wait(smem.v_full(v_ring.stage), v_ring.phase);
    multiply(dp, smem.base + L::kDo + rows, smem.v(v_ring.stage));
    wgmma_commit();
  }
  __device__ void multiply(float (&d)[kKeys / 2], uint32_t rows, uint32_t keys) {
    const uint64_t x = k_major_descriptor(rows), y = k_major_descriptor(keys);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dh / 16; ++i)
      wgmma_ss<kKeys>(d, x + ((i / 4) * L::kPanel + (i % 4) * kKStep) / 16,
                      y + ((i / 4) * L::kKeyPanel + (i % 4) * kKStep) / 16, i > 0);
  }
  __device__ void start_dq(bool accumulate) {
    const uint64_t k = mn_major_descriptor(smem.k(k_done.stage), L::kKeyPanel);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
      wgmma_rs<Dh, true>(dq, ds[i], k + i * (kMnStep / 16), i > 0 || accumulate);
    wgmma_commit();
  }
  __device__ void release_k() {
    if (lane == 0) mbar_arrive(smem.k_empty(k_done.stage));
    k_done.advance();
  }
  __device__ void release_v() {
    if (lane == 0) mbar_arrive(smem.v_empty(v_ring.stage));
    v_ring.advance();
  }

  // dS of a tile whose first key is k0 positions after the warpgroup's first row.
  template <bool kMasked>
  __device__ void make_ds(int k0) {
    const int r = warp * 16 + lane / 4, key = k0 + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int half = (i / 2) & 1;
      const float p = ex2(__fmaf_rn(s[i], a.c, minus_lse[half]));
      s[i] = __fmul_rn(p, __fsub_rn(dp[i], delta[half]));
      if (kMasked && key + 2 * (i & ~3) + (i & 1) > r + 8 * half) s[i] = 0.0f;
    }
    pack_operand<kKeys / 16>(ds, s);
  }

  // dQ of this tile and the scores of the next, queued together.
  template <bool kMasked>
  __device__ void step(int k0, bool accumulate) {
    make_ds<kMasked>(k0);
    start_dq(accumulate);
    start_scores();
    wgmma_wait<1>();
    wgmma_keep(dq);
    release_k();
    wgmma_wait<0>();
    wgmma_keep(s);
    wgmma_keep(dp);
    release_v();
  }

  __device__ void run_item(const Item& item) {
    const int tiles = (item.position + item.len - 1) / kKeys + 1;
    const int row0 = item.position + group * kRows;  // position of the warpgroup's first row
    const int mine =
        min(tiles, (row0 + kRows - 1) / kKeys + 1);  // the rest is masked for all of its rows
    const int open = min(mine, (row0 + 1) / kKeys);  // tiles below need no mask
    const int live = item.len - group * kRows - warp * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = warp * 16 + lane / 4 + 8 * h + group * kRows;
      const int64_t at = static_cast<int64_t>(item.input_row + r) * a.H + item.head;
      minus_lse[h] = r < item.len ? -a.lse[at] : 0.0f;
      delta[h] = r < item.len ? a.delta[at] : 0.0f;
    }
    start_scores();
    wgmma_wait<0>();
    wgmma_keep(s);
    wgmma_keep(dp);
    release_v();
    int j = 0;
    for (; j < min(open, mine - 1); ++j) step<false>(0, j > 0);
    for (; j < mine - 1; ++j) step<true>(j * kKeys - row0, j > 0);
    if (lane == 0) mbar_arrive(smem.q_empty());
    make_ds<true>(j * kKeys - row0);
    start_dq(j > 0);
    wgmma_wait<0>();
    wgmma_keep(dq);
    release_k();
    for (++j; j < tiles; ++j) pass_over();
    const float scale[2] = {a.scale, a.scale};
    const int64_t stride = static_cast<int64_t>(a.H) * Dh;
    store_rows<Dh>(smem.base + L::kPatch + (group * 4 + warp) * kRowPatchBytes<Dh>, dq, scale,
                   a.dq + (item.row + group * kRows + warp * 16) * stride + item.head * Dh, stride,
                   live);
  }
  __device__ void pass_over() {
    mbar_wait(smem.k_full(k_next.stage), k_next.phase);
    k_next.advance();
    release_k();
    mbar_wait(smem.v_full(v_ring.stage), v_ring.phase);
    release_v();
  }
};

template <int Dh>
__device__ void consume(const Smem<Dh>& smem, const DqArgs& a) {
  Consumer<Dh> consumer(smem, a);
  for (uint32_t q_phase = 0;; q_phase ^= 1) {
    mbar_wait(smem.q_full(), q_phase);
    const int4 low = read_slot(smem.base + Smem<Dh>::kItem);
    const int4 high = read_slot(smem.base + Smem<Dh>::kItem + 16);
    const Item item{low.x, low.y, low.z, low.w, high.x, {}};
    if (item.head < 0) return;
    consumer.run_item(item);
  }
}

template <int Dh>
__global__ void __launch_bounds__(kThreads, 1)
    dq_kernel(const __grid_constant__ RowMaps maps, const __grid_constant__ DqArgs args) {
  extern __shared__ uint8_t raw[];
  const Smem<Dh> smem{(smem_address(raw) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    mbar_init(smem.q_full(), 1);
    mbar_init(smem.q_empty(), kConsumerWarps);
    for (int s = 0; s < Smem<Dh>::kStages; ++s) {
      mbar_init(smem.k_full(s), 1);
      mbar_init(smem.k_empty(s), kConsumerWarps);
      mbar_init(smem.v_full(s), 1);
      mbar_init(smem.v_empty(s), kConsumerWarps);
    }
    mbar_init_fence();
  }
  __syncthreads();
  grid_dependency_wait();
  if (warp_id() >= kConsumerWarps) {
    set_max_registers_down<40>();
    if (warp_id() == kConsumerWarps) produce(smem, maps, args);
  } else {
    set_max_registers_up<232>();
    consume(smem, args);
  }
}

template <int Dh>
void launch_dq(Stream stream, const AttentionBwdArgs& a, const WorkList& work) {
  const RowMaps maps = row_maps("attention_bwd_dq", a, kBlock, kKeys);
  const DqArgs args{work, a.seq_begin,         a.lse,  a.delta, a.dq, a.H,
                    a.KH, exp2_scale(a.scale), a.scale};
  const Launch l{.grid = dim3(static_cast<unsigned>(sm_count())),
                 .block = dim3(kThreads),
                 .shared_bytes = Smem<Dh>::kBytes,
                 .dependent = true,
                 .stream = stream_of(stream)};
  launch("attention_bwd_dq", l, dq_kernel<Dh>, maps, args);
}

}  // namespace

void backward_dq(Stream stream, const AttentionBwdArgs& a) {
  const WorkList work = work_list_at(a.workspace);
  make_work_list(
      stream, {a.segments, a.n_segments, nullptr, WorkOrder::keys, a.KH, int64_t{a.Dh} * 4}, work);
  a.Dh == 128 ? launch_dq<128>(stream, a, work) : launch_dq<64>(stream, a, work);
}

}  // namespace rlk::cuda::attn
