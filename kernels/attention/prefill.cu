// Attention forward for segments of any length: prefill, chunks, scoring, training.
//
// Persistent CTAs claim (block of up to 128 query positions, query head) items, longest first. Two
// consumer warpgroups take 64 rows each; one producer warp feeds Q and the K/V tiles by TMA. A
// consumer runs Q K(j), then P(j-1) V(j-1), and does the softmax of j while the other warpgroup has
// the tensor cores (turns by named barriers).
//
// The sum over finished splits lives in shared memory: registers hold S, O and P (160), and it
// changes once in 1024 keys.

#include "kernels/attention/launchers.h"
#include "kernels/attention/pages.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/attention/rule.cuh"
#include "kernels/attention/work_list.h"
#include "kernels/common/launch.h"

namespace rlk::cuda::attn {
namespace {

constexpr int kConsumers = 2;               // warpgroups
constexpr int kRows = kBlock / kConsumers;  // of one: the M of wgmma
constexpr int kThreads = (kConsumers + 1) * 128;
constexpr int kConsumerWarps = kConsumers * 4;
static_assert(kRows == 64 &&
              kBlock == kTile);  // a block lies in one key tile: only its last tile is masked

struct PrefillArgs {
  PageTable pages;
  WorkList work;
  bf16* o;
  float* lse;
  int H, KH;
  float c;
};

template <int Dh>
struct Smem {
  static constexpr int kStages = Dh == 128 ? 2 : 4;
  static constexpr int kTileBytes = kTile * Dh * 2;
  static constexpr int kQPanel = kBlock * kRowBytes;
  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kBlock * Dh * 2;
  static constexpr int kV = kK + kStages * kTileBytes;
  static constexpr int kSum =
      kV + kStages * kTileBytes;  // split sums: 16 rows of fp32 a consumer warp
  static constexpr int kSumWarp = 16 * Dh * 4;
  static constexpr int kItem = kSum + kConsumerWarps * kSumWarp;
  static constexpr int kBarriers = kItem + 32;
  static constexpr int kBytes =
      kBarriers + (2 + 4 * kStages) * 8 + 1024;  // 1024: the swizzle's alignment
  static_assert(kBytes <= kMaxSharedBytes && kSumWarp >= kRowPatchBytes<Dh>);

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

// What the producer hands to the consumers with Q: head, rows, first position, first row; head -1
// ends the kernel.
struct Item {
  int head, len, position, row;
};

// ---- Producer --------------------------------------------------------------------------------

template <int Dh>
__device__ void produce(const Smem<Dh>& smem, const CUtensorMap& q_map, const KvMaps<kSlices>& kv,
                        const PrefillArgs& a) {
  using L = Smem<Dh>;
  const int lane = lane_id(), heads_per_kv = a.H / a.KH;
  Ring<L::kStages> k_ring, v_ring;
  uint32_t q_phase = 0;
  PageWindow k_pages, v_pages;
  WorkQueue work(a.work, a.KH, heads_per_kv);

  const auto hand_over =
      [&](const Item& item) {  // waits until the consumers are done with the last Q
        mbar_wait(smem.q_empty(), q_phase ^ 1);
        q_phase ^= 1;
        if (lane == 0) {
          st_shared(smem.base + L::kItem, __builtin_bit_cast(uint4, item));
          if (item.head < 0) {
            mbar_arrive(smem.q_full());
          } else {
            mbar_arrive_expect(smem.q_full(), kBlock * Dh * 2);
            for (int p = 0; p < Dh / 64; ++p)
              tma_load_2d(smem.base + L::kQ + p * L::kQPanel, &q_map, smem.q_full(),
                          item.head * Dh + p * 64, item.row);
          }
        }
        __syncwarp();
      };

  while (!work.done()) {
    const AttentionSegment block = work.block;
    const int head = work.head, kv_head = head / heads_per_kv, tiles = block.position / kTile + 1;
    k_pages.start(a.pages, block.seq, block.position + block.len);
    v_pages = k_pages;
    const auto load_k = [&](int j) {
      mbar_wait(smem.k_empty(k_ring.stage), k_ring.phase ^ 1);
      load_tile<Dh, false>(smem.k(k_ring.stage), kv.k, smem.k_full(k_ring.stage), k_pages, j,
                           kv_head, a.pages.shift);
      k_ring.advance();
    };
    const auto load_v = [&](int j) {
      mbar_wait(smem.v_empty(v_ring.stage), v_ring.phase ^ 1);
      load_tile<Dh, false>(smem.v(v_ring.stage), kv.v, smem.v_full(v_ring.stage), v_pages, j,
                           kv_head, a.pages.shift);
      v_ring.advance();
    };
    work.claim();
    load_k(0);
    hand_over({head, block.len, block.position, block.row});
    for (int j = 1; j < tiles; ++j) {
      load_k(j);
      load_v(j - 1);
    }
    work.next();
    load_v(tiles - 1);
  }
  hand_over({-1, 0, 0, 0});
}

// ---- Consumer --------------------------------------------------------------------------------

enum class SplitEnd {
  no,
  yes,
  maybe
};  // does tile j - 1 end a split: known at compile time, or `ends`

template <int Dh>
struct Consumer {
  using L = Smem<Dh>;
  const Smem<Dh>& smem;
  const float c;
  const int group, warp, lane;  // warpgroup, warp in it
  Ring<L::kStages> k_ring, v_ring;
  float s[kTile / 2], o[Dh / 2];
  uint32_t p[kTile / 16][4];
  RowSums row;
  Merge sum[2];
  float split_m[2], split_l[2];  // of the finished split that waits in o
  bool first_split, waiting;

  __device__ Consumer(const Smem<Dh>& smem_, float c_)
      : smem(smem_), c(c_), group(warp_id() / 4), warp(warp_id() % 4), lane(lane_id()) {}

  // Turns on the tensor cores: each warpgroup issues its two products, then lets the other one.
  __device__ void take_turn() { bar_sync(1 + group, kConsumers * 128); }
  __device__ void pass_turn() { bar_arrive(2 - group, kConsumers * 128); }

  __device__ void release_k() {
    if (lane == 0) mbar_arrive(smem.k_empty(k_ring.stage));
    k_ring.advance();
  }
  __device__ void release_v() {
    if (lane == 0) mbar_arrive(smem.v_empty(v_ring.stage));
    v_ring.advance();
  }

  __device__ void start_qk() {
    const uint64_t q = k_major_descriptor(smem.base + L::kQ + group * (kRows * kRowBytes));
    const uint64_t k = k_major_descriptor(smem.k(k_ring.stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dh / 16; ++i)
      wgmma_ss<kTile>(s, q + ((i / 4) * L::kQPanel + (i % 4) * kKStep) / 16,
                      k + ((i / 4) * (kTile * kRowBytes) + (i % 4) * kKStep) / 16, i > 0);
    wgmma_commit();
  }
  __device__ void start_pv(bool accumulate) {
    const uint64_t v = mn_major_descriptor(smem.v(v_ring.stage), kTile * kRowBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i)
      wgmma_rs<Dh, true>(o, p[i], v + i * (kMnStep / 16), i > 0 || accumulate);
    wgmma_commit();
  }

  // Keys after the row's own; k0: the tile's first key minus the position of the warpgroup's first
  // row.
  __device__ void mask(int k0) {
    const int r = warp * 16 + lane / 4, key = k0 + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < kTile / 2; i += 4) {
      if (key + 2 * i > r) s[i] = kMinusInf;
      if (key + 2 * i + 1 > r) s[i + 1] = kMinusInf;
      if (key + 2 * i > r + 8) s[i + 2] = kMinusInf;
      if (key + 2 * i + 1 > r + 8) s[i + 3] = kMinusInf;
    }
  }

  __device__ void end_split() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      split_m[h] = row.m[h];
      split_l[h] = row.total(h);
    }
  }
  __device__ void split_factors(float (&a)[2], float (&b)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (first_split) {
        sum[h] = {split_m[h], split_l[h]};
        a[h] = 0;
        b[h] = 1;
      } else {
        merge_factors(sum[h], split_m[h], split_l[h], a[h], b[h]);
      }
    }
  }

  // Thread-private 16-byte slots, four values each.
  __device__ uint32_t slots() {
    return opaque(smem.base + L::kSum + (group * 4 + warp) * L::kSumWarp + lane * 16);
  }
  __device__ float4 merged(float4 x, int i, const float (&a)[2], const float (&b)[2]) {
    return {merge_value(x.x, o[i], a[0], b[0]), merge_value(x.y, o[i + 1], a[0], b[0]),
            merge_value(x.z, o[i + 2], a[1], b[1]), merge_value(x.w, o[i + 3], a[1], b[1])};
  }
  // The split waiting in o joins the sum in shared memory; o stays, the next product starts from
  // zero.
  __device__ void merge_split() {
    float a[2], b[2];
    split_factors(a, b);
    const uint32_t slot = slots();
    if (first_split) {
#pragma unroll
      for (int i = 0; i < Dh / 8; ++i)
        st_shared(slot + i * 512, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
      first_split = false;
      return;
    }
    constexpr int kAhead = 4;  // loads in flight
#pragma unroll
    for (int g = 0; g < Dh / 8; g += kAhead) {
      float4 x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) x[i] = ld_shared_float4(slot + (g + i) * 512);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        st_shared(slot + (g + i) * 512, merged(x[i], 4 * (g + i), a, b));
    }
  }
  __device__ void merge_last_split() {
    float a[2], b[2];
    split_factors(a, b);
    if (first_split) return;
    const uint32_t slot = slots();
#pragma unroll
    for (int i = 0; i < Dh / 8; ++i) {
      const float4 x = merged(ld_shared_float4(slot + i * 512), 4 * i, a, b);
      o[4 * i] = x.x;
      o[4 * i + 1] = x.y;
      o[4 * i + 2] = x.z;
      o[4 * i + 3] = x.w;
    }
  }

  // Q K(j) and P(j-1) V(j-1), then the softmax of j. No branch may stand between the two waits:
  // with one there, ptxas treats S as in flight until the second and nothing overlaps.
  template <SplitEnd kEnd, bool kMasked>
  __device__ void step(bool& accumulate, bool ends, int k0) {
    mbar_wait(smem.k_full(k_ring.stage), k_ring.phase);
    take_turn();
    start_qk();
    if (waiting) {  // under the Q K in flight
      wgmma_keep(o);
      merge_split();
    }
    mbar_wait(smem.v_full(v_ring.stage), v_ring.phase);
    start_pv(accumulate);
    pass_turn();
    const bool split_done = kEnd == SplitEnd::yes || (kEnd == SplitEnd::maybe && ends);
    if (split_done) {
      end_split();
      row.start_split();
    }
    wgmma_wait<1>();
    wgmma_keep(s);
    release_k();
    if (kMasked) {
      if (lane == 0) mbar_arrive(smem.q_empty());  // the masked tile is the item's last
      mask(k0);
    }
    softmax_tile(s, row, c);
    wgmma_wait<0>();
    wgmma_keep(o);
    release_v();
    waiting = split_done;
    accumulate = !split_done;
    if (!split_done && __any_sync(0xffffffffu, row.f[0] != 1.0f || row.f[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < Dh / 2; ++i) o[i] = __fmul_rn(o[i], row.f[(i / 2) & 1]);
    }
    pack_operand<kTile / 16>(p, s);
  }

  __device__ void run_item(const Item& item, const PrefillArgs& args) {
    const int tiles = item.position / kTile + 1;
    const int k0 = (tiles - 1) * kTile - (item.position + group * kRows);  // of the last tile
    row.start_split();
    first_split = true;
    waiting = false;
    mbar_wait(smem.k_full(k_ring.stage), k_ring.phase);
    start_qk();
    wgmma_wait<0>();
    wgmma_keep(s);
    release_k();
    if (tiles == 1) {
      if (lane == 0) mbar_arrive(smem.q_empty());
      mask(k0);
    }
    softmax_tile(s, row, c);
    pack_operand<kTile / 16>(p, s);

    bool accumulate = false;
    int j = 1;
    while (j < tiles - 1) {
      for (const int end = min(tiles - 1, (j | (kSplitTiles - 1)) + 1); j < end; ++j)
        step<SplitEnd::no, false>(accumulate, false, 0);
      if (j < tiles - 1) {
        step<SplitEnd::yes, false>(accumulate, true, 0);
        ++j;
      }
    }
    if (tiles > 1) step<SplitEnd::maybe, true>(accumulate, (tiles - 1) % kSplitTiles == 0, k0);
    if (waiting) {
      wgmma_keep(o);
      merge_split();
    }
    finish(item, args, accumulate);
  }

  // The last P V, the last merge, and the rows' results.
  __device__ void finish(const Item& item, const PrefillArgs& args, bool accumulate) {
    mbar_wait(smem.v_full(v_ring.stage), v_ring.phase);
    const int live = (item.position + item.len) % kTile;
    if (live != 0) {  // the tile reaches past the context; both warpgroups read it
      zero_keys<Dh>(smem.v(v_ring.stage), live, static_cast<int>(threadIdx.x), kConsumers * 128);
      bar_sync(3, kConsumers * 128);
    }
    start_pv(accumulate);
    end_split();
    wgmma_wait<0>();
    wgmma_keep(o);
    release_v();
    merge_last_split();
    const int r = group * kRows + warp * 16;  // of the block
    if (args.lse != nullptr && (lane & 3) == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (const int i = r + lane / 4 + 8 * h; i < item.len)
          args.lse[static_cast<int64_t>(item.row + i) * args.H + item.head] =
              row_lse(sum[h].M, sum[h].L);
    }
    const float inverse[2] = {__frcp_rn(sum[0].L), __frcp_rn(sum[1].L)};
    const int64_t stride = static_cast<int64_t>(args.H) * Dh;
    store_rows<Dh>(smem.base + L::kSum + (group * 4 + warp) * L::kSumWarp, o, inverse,
                   args.o + (item.row + r) * stride + item.head * Dh, stride, item.len - r);
  }
};

template <int Dh>
__device__ void consume(const Smem<Dh>& smem, const PrefillArgs& a) {
  Consumer<Dh> consumer(smem, a.c);
  if (consumer.group == 1) bar_arrive(1, kConsumers * 128);  // the first turn is warpgroup 0's
  for (uint32_t q_phase = 0;; q_phase ^= 1) {
    mbar_wait(smem.q_full(), q_phase);
    const Item item = __builtin_bit_cast(Item, read_slot(smem.base + Smem<Dh>::kItem));
    if (item.head < 0) return;
    consumer.run_item(item, a);
  }
}

template <int Dh>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ KvMaps<kSlices> kv,
                   const __grid_constant__ PrefillArgs args) {
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
  grid_dependency_wait();  // for the work list
  if (warp_id() >= kConsumerWarps) {
    set_max_registers_down<40>();
    if (warp_id() == kConsumerWarps) produce(smem, q_map, kv, args);
  } else {
    set_max_registers_up<232>();
    consume(smem, args);
  }
}

template <int Dh>
void launch_prefill(Stream stream, const AttentionArgs& a, const WorkList& work) {
  const auto kv = kv_maps<kSlices>("attention", a.cache, a.KH, Dh);
  const CUtensorMap q_map =
      tensor_map("attention", a.q, TmaType::bf16,
                 {{int64_t{a.H} * Dh, 1, 64}, {a.T, int64_t{a.H} * Dh, kBlock}});
  const PrefillArgs args{
      page_table("attention", a.cache), work, a.o, a.lse, a.H, a.KH, exp2_scale(a.scale)};
  const Launch l{.grid = dim3(static_cast<unsigned>(sm_count())),
                 .block = dim3(kThreads),
                 .shared_bytes = Smem<Dh>::kBytes,
                 .dependent = true,
                 .stream = stream_of(stream)};
  launch("attention", l, prefill_kernel<Dh>, q_map, kv, args);
}

}  // namespace

void prefill(Stream stream, const AttentionArgs& a) {
  const WorkList work = work_list_at(a.workspace);
  make_work_list(
      stream, {a.segments, a.n_segments, nullptr, WorkOrder::keys, a.KH, int64_t{a.Dh} * 4}, work);
  a.Dh == 128 ? launch_prefill<128>(stream, a, work) : launch_prefill<64>(stream, a, work);
}

}  // namespace rlk::cuda::attn
