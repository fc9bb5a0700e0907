// dK = scale * dS^T Q and dV = P^T dO, the second of the two backward passes.
//
//   s^T = K Q^T, dP^T = V dO^T: the chains over Dh of the first pass with the operands swapped, so
//   the same bits p = ex2(fma(s, c, -lse)), 0 where masked;  dS = p * (dP - delta) dV = one chain
//   of bf16(p) dO, dK = scale * one chain of bf16(dS) Q, from +0, over query tiles of 128 from
//   position 0, in a tile the group's heads in order, for each its queries, k16 steps ascending;
//   rounded once.
// A row depends on its own key and the queries that see it: masked queries add exact zeros, so
// blocks of keys are free.
//
// Persistent CTAs claim (128 key rows, KV head). Two consumer warpgroups of 64 keys hold dK and dV
// (128 registers); K and V stay in shared memory for the item, Q and dO tiles stream through a ring
// with their lse and delta.

#include "kernels/attention/backward.cuh"
#include "kernels/attention/rows.cuh"

namespace rlk::cuda::attn {
namespace {

constexpr int kQueries = 64;     // a step: S^T and dP^T fit beside the accumulators
constexpr int kQueryTile = 128;  // the order's tile
constexpr int kConsumers = 2;
constexpr int kRows = kBlock / kConsumers;
constexpr int kConsumerWarps = kConsumers * 4;
constexpr int kThreads = (kConsumers + 1) * 128;
static_assert(kRows == 64 && kQueries % 16 == 0 && kQueryTile == 2 * kQueries &&
              kBlock == kQueryTile);

struct DkvArgs {
  WorkList work;
  const int32_t* seq_begin;
  const float* lse;
  const float* delta;
  bf16* dk;
  bf16* dv;
  int H, KH;
  float c, scale;
};

template <int Dh>
struct Smem {
  static constexpr int kStages = Dh == 128 ? 3 : 4;
  static constexpr int kQBytes = kQueries * Dh * 2;
  static constexpr int kPanel = kBlock * kRowBytes;         // of K and V
  static constexpr int kQueryPanel = kQueries * kRowBytes;  // of Q and dO
  static constexpr int kRowStats = kQueries * 2 * 4;        // lse, then delta
  static constexpr int kK = 0;
  static constexpr int kV = kK + kBlock * Dh * 2;
  static constexpr int kQ = kV + kBlock * Dh * 2;
  static constexpr int kDo = kQ + kStages * kQBytes;
  static constexpr int kPatch = kDo + kStages * kQBytes;
  static constexpr int kStats = kPatch + kConsumerWarps * kRowPatchBytes<Dh>;
  static constexpr int kItem = kStats + kStages * kRowStats;
  static constexpr int kBarriers = kItem + 32;
  static constexpr int kBytes = kBarriers + (2 + 4 * kStages) * 8 + 1024;
  static_assert(kBytes <= kMaxSharedBytes);

  uint32_t base;
  __device__ uint32_t k_full() const { return base + kBarriers; }  // K and V
  __device__ uint32_t k_empty() const { return k_full() + 8; }
  __device__ uint32_t q_full(int s) const { return k_full() + 16 + s * 32; }  // Q and lse, delta
  __device__ uint32_t q_empty(int s) const { return q_full(s) + 8; }
  __device__ uint32_t do_full(int s) const { return q_full(s) + 16; }
  __device__ uint32_t do_empty(int s) const { return q_full(s) + 24; }
  __device__ uint32_t q(int s) const { return base + kQ + s * kQBytes; }
  __device__ uint32_t d_o(int s) const { return base + kDo + s * kQBytes; }
  __device__ uint32_t stats(int s) const { return base + kStats + s * kRowStats; }
};

// head -1 ends the kernel.
struct Item {
  int head, len, position, row;
  int queries;    // the sequence's length
  int first_row;  // of the sequence in q, k, v, d_o
};

// The steps of an item in the rule's order, as every role walks them.
class Steps {
 public:
  __device__ Steps(const Item& item, int group)
      : queries_(item.queries), group_(group), tile_(item.position / kQueryTile * kQueryTile) {}
  __device__ bool done() const { return tile_ >= queries_; }
  __device__ int head() const { return head_; }          // of the group
  __device__ int query() const { return tile_ + sub_; }  // first of the step
  __device__ void next() {
    sub_ += kQueries;
    if (sub_ < kQueryTile && tile_ + sub_ < queries_) return;
    sub_ = 0;
    if (++head_ < group_) return;
    head_ = 0;
    tile_ += kQueryTile;
  }

 private:
  int queries_, group_, tile_, head_ = 0, sub_ = 0;
};

// ---- Producers: warp 0 by TMA, warp 1 the row statistics (strided by H) -----------------------

template <int Dh>
__device__ void produce(const Smem<Dh>& smem, const RowMaps& maps, const DkvArgs& a) {
  using L = Smem<Dh>;
  const int lane = lane_id(), group = a.H / a.KH;
  Ring<L::kStages> ring;
  uint32_t k_phase = 0;
  WorkQueue work(a.work, a.KH, 1);

  const auto hand_over = [&](const Item& item) {
    mbar_wait(smem.k_empty(), k_phase ^ 1);
    k_phase ^= 1;
    if (lane == 0) {
      st_shared(smem.base + L::kItem,
                make_uint4(static_cast<uint32_t>(item.head), static_cast<uint32_t>(item.len),
                           static_cast<uint32_t>(item.position), static_cast<uint32_t>(item.row)));
      st_shared(smem.base + L::kItem + 16, static_cast<uint32_t>(item.queries));
      st_shared(smem.base + L::kItem + 20, static_cast<uint32_t>(item.first_row));
      if (item.head < 0) {
        mbar_arrive(smem.k_full());
      } else {
        mbar_arrive_expect(smem.k_full(), 2 * kBlock * Dh * 2);
        const int row = item.first_row + item.position;
        load_rows<Dh>(smem.base + L::kK, L::kPanel, &maps.k, smem.k_full(), item.head, row);
        load_rows<Dh>(smem.base + L::kV, L::kPanel, &maps.v, smem.k_full(), item.head, row);
      }
    }
    __syncwarp();
  };

  while (!work.done()) {
    const AttentionSegment block = work.block;
    const int first_row = a.seq_begin[block.seq];
    const Item item{
        work.head, block.len, block.position, block.row, a.seq_begin[block.seq + 1] - first_row,
        first_row};
    work.claim();
    hand_over(item);
    for (Steps step(item, group); !step.done(); step.next()) {
      const int head = item.head * group + step.head(), row = first_row + step.query();
      mbar_wait(smem.q_empty(ring.stage), ring.phase ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(smem.q_full(ring.stage), L::kQBytes);
        load_rows<Dh>(smem.q(ring.stage), L::kQueryPanel, &maps.q, smem.q_full(ring.stage), head,
                      row);
      }
      mbar_wait(smem.do_empty(ring.stage), ring.phase ^ 1);
      if (lane == 0) {
        mbar_arrive_expect(smem.do_full(ring.stage), L::kQBytes);
        load_rows<Dh>(smem.d_o(ring.stage), L::kQueryPanel, &maps.d_o, smem.do_full(ring.stage),
                      head, row);
      }
      ring.advance();
      __syncwarp();
    }
    work.next();
  }
  hand_over({-1, 0, 0, 0, 0, 0});
}

template <int Dh>
__device__ Item read_item(const Smem<Dh>& smem) {
  const uint32_t at = smem.base + Smem<Dh>::kItem;
  const int4 low = read_slot(at), high = read_slot(at + 16);
  return {low.x, low.y, low.z, low.w, high.x, high.y};
}

template <int Dh>
__device__ void produce_stats(const Smem<Dh>& smem, const DkvArgs& a) {
  using L = Smem<Dh>;
  const int lane = lane_id(), group = a.H / a.KH;
  Ring<L::kStages> ring;
  for (uint32_t k_phase = 0;; k_phase ^= 1) {
    mbar_wait(smem.k_full(), k_phase);
    const Item item = read_item(smem);
    if (item.head < 0) return;
    if (lane == 0) mbar_arrive(smem.k_empty());
    for (Steps step(item, group); !step.done(); step.next()) {
      const int head = item.head * group + step.head();
      float lse[kQueries / 32], delta[kQueries / 32];  // on their way while the stage is taken
#pragma unroll
      for (int r = 0; r < kQueries / 32; ++r) {
        const int query = step.query() + r * 32 + lane;
        const int64_t at = static_cast<int64_t>(item.first_row + query) * a.H + head;
        lse[r] = query < item.queries ? a.lse[at] : 0.0f;
        delta[r] = query < item.queries ? a.delta[at] : 0.0f;
      }
      mbar_wait(smem.q_empty(ring.stage), ring.phase ^ 1);
      const uint32_t to = smem.stats(ring.stage) + lane * 4;
#pragma unroll
      for (int r = 0; r < kQueries / 32; ++r) {
        st_shared(to + r * 128, lse[r]);
        st_shared(to + (kQueries + r * 32) * 4, delta[r]);
      }
      mbar_arrive(smem.q_full(ring.stage));
      ring.advance();
    }
  }
}

// ---- Consumer --------------------------------------------------------------------------------

template <int Dh>
struct Consumer {
  using L = Smem<Dh>;
  const Smem<Dh>& smem;
  const DkvArgs& a;
  const int group, warp, lane;
  Ring<L::kStages> now, ahead;  // the tile in hand; the tile whose scores are in flight
  float s[kQueries / 2], dp[kQueries / 2], dk[Dh / 2], dv[Dh / 2];
  uint32_t p[kQueries / 16][4], ds[kQueries / 16][4];

  __device__ Consumer(const Smem<Dh>& smem_, const DkvArgs& a_)
      : smem(smem_), a(a_), group(warp_id() / 4), warp(warp_id() % 4), lane(lane_id()) {}

  __device__ void multiply(float (&d)[kQueries / 2], uint32_t keys, uint32_t queries) {
    const uint64_t x = k_major_descriptor(keys + group * (kRows * kRowBytes)),
                   y = k_major_descriptor(queries);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dh / 16; ++i)
      wgmma_ss<kQueries>(d, x + ((i / 4) * L::kPanel + (i % 4) * kKStep) / 16,
                         y + ((i / 4) * L::kQueryPanel + (i % 4) * kKStep) / 16, i > 0);
    wgmma_commit();
  }
  __device__ void start_s() {
    mbar_wait(smem.q_full(ahead.stage), ahead.phase);
    multiply(s, smem.base + L::kK, smem.q(ahead.stage));
  }
  __device__ void start_dp() {
    mbar_wait(smem.do_full(ahead.stage), ahead.phase);
    multiply(dp, smem.base + L::kV, smem.d_o(ahead.stage));
    ahead.advance();
  }
  __device__ void accumulate(float (&d)[Dh / 2], const uint32_t (&x)[kQueries / 16][4],
                             uint32_t queries, bool more) {
    const uint64_t y = mn_major_descriptor(queries, L::kQueryPanel);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kQueries / 16; ++i)
      wgmma_rs<Dh, true>(d, x[i], y + i * (kMnStep / 16), i > 0 || more);
    wgmma_commit();
  }

  // p of the tile: s[i] is key row lane/4 + 8*half, query column 8*(i/4) + 2*(lane%4) + i%2. q0:
  // the tile's first query minus the warpgroup's first key; end: the sequence's queries left from
  // the tile's first.
  template <bool kMasked>
  __device__ void make_p(int q0, int end) {
    const uint32_t lse = smem.stats(now.stage) + (lane & 3) * 8;
    const int key = warp * 16 + lane / 4, query = 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < kQueries / 2; i += 4) {
      const float2 l = ld_shared_float2(lse + i * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[i + e];
        x = ex2(__fmaf_rn(x, a.c, e & 1 ? -l.y : -l.x));
        const int column = query + 2 * i + (e & 1);
        if (kMasked && (column >= end || q0 + column < key + 8 * (e / 2))) x = 0.0f;
      }
    }
    pack_operand<kQueries / 16>(p, s);
  }
  template <bool kMasked>
  __device__ void make_ds() {
    const uint32_t delta = smem.stats(now.stage) + (kQueries + 2 * (lane & 3)) * 4;
#pragma unroll
    for (int i = 0; i < kQueries / 2; i += 4) {
      const float2 d = ld_shared_float2(delta + i * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = dp[i + e];
        x = __fmul_rn(s[i + e], __fsub_rn(x, e & 1 ? d.y : d.x));
        if (kMasked && s[i + e] == 0.0f) x = 0.0f;  // 0 x (a padding row's anything)
      }
    }
    pack_operand<kQueries / 16>(ds, dp);
  }

  // The tile in hand, its S done and its dP in flight: P and dS, dV and dK, and S of the next tile
  // queued behind them; dP of the next only when P's and dS's registers are free.
  template <bool kMasked, bool kLast>
  __device__ void step(int q0, int end, bool more) {
    make_p<kMasked>(q0, end);
    wgmma_wait<0>();
    wgmma_keep(dp);
    make_ds<kMasked>();
    accumulate(dv, p, smem.d_o(now.stage), more);
    accumulate(dk, ds, smem.q(now.stage), more);
    if (!kLast) start_s();
    wgmma_wait<kLast ? 0 : 1>();
    wgmma_keep(dv);
    wgmma_keep(dk);
    mbar_arrive(smem.q_empty(now.stage));  // by every lane: each has read lse and delta there
    if (lane == 0) mbar_arrive(smem.do_empty(now.stage));
    now.advance();
    if (!kLast) {
      start_dp();
      wgmma_wait<1>();
      wgmma_keep(s);
    }
  }

  __device__ void run_item(const Item& item) {
    const int key0 = item.position + group * kRows;  // position of the warpgroup's first key
    // Masked steps: the tile on the diagonal, and the sequence's last one where it is not whole.
    const int diagonal_end = item.position / kQueryTile * kQueryTile + kQueryTile;
    const int whole_end = item.queries / kQueryTile * kQueryTile;
    start_s();
    start_dp();
    wgmma_wait<1>();
    wgmma_keep(s);
    Steps at(item, a.H / a.KH), next = at;
    bool more = false;
    for (next.next(); !next.done();) {
      for (; !next.done() && at.query() >= diagonal_end && at.query() < whole_end;
           at = next, next.next())
        step<false, false>(0, 0, true);
      if (next.done()) break;
      step<true, false>(at.query() - key0, item.queries - at.query(), more);
      more = true;
      at = next;
      next.next();
    }
    step<true, true>(at.query() - key0, item.queries - at.query(), more);
    if (lane == 0) mbar_arrive(smem.k_empty());
    write(item);
  }

  __device__ void write(const Item& item) {
    const int r = group * kRows + warp * 16;
    const int64_t stride = static_cast<int64_t>(a.KH) * Dh;
    const int64_t at = (item.row + r) * stride + item.head * Dh;
    const uint32_t patch = smem.base + L::kPatch + (group * 4 + warp) * kRowPatchBytes<Dh>;
    const float one[2] = {1.0f, 1.0f}, scale[2] = {a.scale, a.scale};
    store_rows<Dh>(patch, dv, one, a.dv + at, stride, item.len - r);
    store_rows<Dh>(patch, dk, scale, a.dk + at, stride, item.len - r);
  }
};

template <int Dh>
__device__ void consume(const Smem<Dh>& smem, const DkvArgs& a) {
  Consumer<Dh> consumer(smem, a);
  for (uint32_t k_phase = 0;; k_phase ^= 1) {
    mbar_wait(smem.k_full(), k_phase);
    const Item item = read_item(smem);
    if (item.head < 0) return;
    consumer.run_item(item);
  }
}

template <int Dh>
__global__ void __launch_bounds__(kThreads, 1)
    dkv_kernel(const __grid_constant__ RowMaps maps, const __grid_constant__ DkvArgs args) {
  extern __shared__ uint8_t raw[];
  const Smem<Dh> smem{(smem_address(raw) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    mbar_init(smem.k_full(), 1);
    mbar_init(smem.k_empty(), kConsumerWarps + 1);
    for (int s = 0; s < Smem<Dh>::kStages; ++s) {
      mbar_init(smem.q_full(s), 1 + 32);
      mbar_init(smem.q_empty(s), kConsumerWarps * 32);
      mbar_init(smem.do_full(s), 1);
      mbar_init(smem.do_empty(s), kConsumerWarps);
    }
    mbar_init_fence();
  }
  __syncthreads();
  grid_dependency_wait();
  if (warp_id() >= kConsumerWarps) {
    set_max_registers_down<24>();
    if (warp_id() == kConsumerWarps) produce(smem, maps, args);
    if (warp_id() == kConsumerWarps + 1) produce_stats(smem, args);
  } else {
    set_max_registers_up<240>();
    consume(smem, args);
  }
}

template <int Dh>
void launch_dkv(Stream stream, const AttentionBwdArgs& a, const WorkList& work) {
  const RowMaps maps = row_maps("attention_bwd_dkv", a, kQueries, kBlock);
  const DkvArgs args{work, a.seq_begin,         a.lse,  a.delta, a.dk, a.dv, a.H,
                     a.KH, exp2_scale(a.scale), a.scale};
  const Launch l{.grid = dim3(static_cast<unsigned>(sm_count())),
                 .block = dim3(kThreads),
                 .shared_bytes = Smem<Dh>::kBytes,
                 .dependent = true,
                 .stream = stream_of(stream)};
  launch("attention_bwd_dkv", l, dkv_kernel<Dh>, maps, args);
}

}  // namespace

void backward_dkv(Stream stream, const AttentionBwdArgs& a) {
  const WorkList work = work_list_at(a.workspace);
  const int64_t bytes = int64_t{a.Dh} * 4 * (a.H / a.KH);
  make_work_list(stream, {a.segments, a.n_segments, a.seq_begin, WorkOrder::queries, a.KH, bytes},
                 work);
  a.Dh == 128 ? launch_dkv<128>(stream, a, work) : launch_dkv<64>(stream, a, work);
}

}  // namespace rlk::cuda::attn
