// Attention forward for segments of one query: decode.
//
// A work item is one split (1024 keys; native mode: what fills the device) of one (segment, KV
// head). A persistent CTA holds one or two independent machines: a consumer warpgroup, a producer
// warp with its ring of K/V tiles, and a publisher warp. Sequences of several splits leave
// (O, m, l) in the workspace, and whoever finishes a sequence's last split merges all of them in
// ascending order.
//
// The group's query heads (1 to 8) are the N of the matrix instruction, keys and columns of Dh its
// M: S^T = K Q^T, O^T = V^T P^T. The chains are prefill's, and swapping the operands of a chain
// changes no bit; so decode wastes no tensor work on rows that do not exist, all four warps share a
// tile's softmax, and Q K of the next tile runs under it. Decode then only has to keep the memory
// busy: one machine an SM with a deep ring when there are few items, two when there are many, so
// that one's item ends hide behind the other's loads. A few items alone are bound by what their SMs
// can fetch: then two CTAs share each (decode_work.cuh).

#include <algorithm>

#include "kernels/attention/decode_work.cuh"
#include "kernels/attention/launchers.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"

namespace rlk::cuda::attn {
namespace {

constexpr int kMaxGroup = 8;  // query heads of a KV head: the smallest N

// Arrival counts of (segment, KV head): how many splits have been published. Zero between calls:
// the merging CTA resets its own. Static, so that a workspace shared with other ops cannot dirty
// them; calls of one process are in one stream.
constexpr int kMaxArrivals = 1 << 16;
__device__ int arrivals[kMaxArrivals];

// ---- Producer warp: K and V tiles in the order of use, K a tile ahead ------------------------

template <int Dh, int kMachines, int kShards, bool kShared>
__device__ void produce(const Smem<Dh, kMachines>& smem, const KvMaps<kShards>& kv,
                        const DecodeArgs& a, int part, int first, int step) {
  Ring<Smem<Dh, kMachines>::kStages> ring;
  if (!a.past_ready) grid_dependency_wait();
  for_items(a, first, step, [&](const Item& item) {
    PageWindow pages;
    pages.start(a.pages, item.s.seq, item.context);
    const int newest = item.s.position / kTile;
    const auto load = [&]<bool kIsK>(const CUtensorMap* maps, int j) {
      const int tile = ((item.split << a.split_shift) >> kTileShift) + j;
      if (tile == newest) grid_dependency_wait();  // its last key comes from the kernel ahead
      mbar_wait(smem.empty(ring.stage), ring.phase ^ 1);
      const uint32_t to = smem.tile(ring.stage), bar = smem.full(ring.stage);
      if constexpr (!kShared)
        load_tile<Dh, true>(to, maps, bar, pages, tile, item.head, a.pages.shift);
      else if constexpr (kIsK)
        load_panels<1, true>(to + part * kPanelBytes, maps, bar, kParts * kPanelBytes, pages, tile,
                             item.head, a.pages.shift, part, kPartCtas);
      else
        load_panels<1, true>(to, maps, bar, kPanelBytes, pages, tile, item.head, a.pages.shift,
                             part, 0);
      ring.advance();
    };
    const auto load_k = [&](int j) { load.template operator()<true>(kv.k, j); };
    const auto load_v = [&](int j) { load.template operator()<false>(kv.v, j); };
    load_k(0);
    for (int j = 1; j < item.tiles; ++j) {
      load_k(j);
      load_v(j - 1);
    }
    load_v(item.tiles - 1);
  });
}

// ---- Publisher warp: queries ahead of the consumers, arrival counts behind them --------------

// One more split of a (segment, KV head), or part of it, is in the workspace; true for the last.
// Release: what the consumers wrote before the barrier; acquire: what the others published.
__device__ inline bool arrive(int index, int expected) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(&arrivals[index])
               : "memory");
  return before == expected - 1;
}

template <int Dh, int kMachines, bool kShared>
__device__ void publish(const Smem<Dh, kMachines>& smem, const CUtensorMap& q_map,
                        const DecodeArgs& a, int v, int first, int step) {
  using L = Smem<Dh, kMachines>;
  const int lane = lane_id();
  const Barriers bar(v);
  grid_dependency_wait();
  int loaded = 0, published = 0;
  // Queries are loaded an item ahead: the loop over items runs twice, one of them a step behind.
  Item behind{};
  const auto count = [&](const Item& item) {
    if (item.splits == 1) return;
    bar_sync(bar.written, kHandOver);
    if (lane == 0) {
      const int all = item.splits * (kShared ? kParts : 1);
      st_shared(smem.last_flag(published & 1),
                static_cast<uint32_t>(arrive(item.segment * a.KH + item.head, all)));
    }
    ++published;
    __syncwarp();
    bar_arrive(bar.counted, kHandOver);
  };
  for_items(a, first, step, [&](const Item& item) {
    const int i = loaded & 1;
    if (lane == 0) {
      mbar_wait(smem.q_empty(i), ((loaded >> 1) & 1) ^ 1);
      mbar_arrive_expect(smem.q_full(i), a.group * Dh * 2);
      for (int p = 0; p < Dh / 64; ++p)
        tma_load_2d(smem.q_buffer(i) + p * 1024, &q_map, smem.q_full(i), p * 64,
                    item.s.row * a.H + item.head * a.group);
    }
    __syncwarp();
    if (loaded++ > 0) count(behind);
    behind = item;
  });
  if (loaded > 0) count(behind);
  static_assert(L::kQBuffers == 2);
}

// ---- Consumer warpgroup ----------------------------------------------------------------------

// Thread (warp w, lane l) holds of S^T, for t, half, e in {0, 1}: key 64t + 16w + 8*half + l/4,
// head 2(l % 4) + e; of O^T the same with columns of Dh for keys. Heads past the group hold
// anything: a column of a product depends on its own column of B alone.
template <int Dh, int kMachines, bool kShared>
struct Consumer {
  using L = Smem<Dh, kMachines>;
  static constexpr int kPanels = Dh / 64 / (kShared ? kParts : 1);  // of 64 columns of O
  const L& smem;
  const DecodeArgs& a;
  const int part;
  const int warp, lane;  // in the warpgroup
  const Barriers bar;
  Ring<L::kStages> ring;
  int k_stage, v_stage, items = 0, merged = 0;
  float s[2][4], o[kPanels][4];
  float m[2], l;   // l: of class 4*warp + lane/8 and head lane%8, warps 0 and 1
  Item pending{};  // its arrival is being counted; no splits: none is

  __device__ Consumer(const L& smem_, const DecodeArgs& a_, int part_, int v)
      : smem(smem_), a(a_), part(part_), warp(warp_id() % 4), lane(lane_id()), bar(v) {}

  __device__ void sync() { bar_sync(bar.consumers, 128); }
  __device__ int next_stage() {
    mbar_wait(smem.full(ring.stage), ring.phase);
    const int stage = ring.stage;
    ring.advance();
    return stage;
  }
  // A stage of a shared item is filled for both CTAs, so both must have left it.
  __device__ void release(int stage) {
    if constexpr (kShared) {
      if (lane < kParts) mbar_arrive_cluster(cluster_map(smem.empty(stage), lane * kPartStep));
    } else {
      if (lane == 0) mbar_arrive(smem.empty(stage));
    }
  }

  // S^T = K Q^T of the next tile.
  __device__ void start_qk() {
    k_stage = next_stage();
    const uint64_t k = k_major_descriptor(smem.tile(k_stage));
    const uint64_t q = k_major_descriptor(smem.q_buffer(items & 1));
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < Dh / 16; ++i)
        wgmma_ss<8>(
            s[t],
            k + ((i / 4) * (kTile * kRowBytes) + t * (64 * kRowBytes) + (i % 4) * kKStep) / 16,
            q + ((i / 4) * 1024 + (i % 4) * kKStep) / 16, i > 0);
    wgmma_commit();
  }
  // O^T += V^T P^T; V's rows are the contraction, so it is M-major.
  __device__ void start_pv(int p_buffer, bool accumulate) {
    const uint64_t p = k_major_descriptor(smem.p_buffer(p_buffer));
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const uint64_t v = mn_major_descriptor(smem.tile(v_stage) + panel * kPanelBytes);
#pragma unroll
      for (int i = 0; i < kTile / 16; ++i)
        wgmma_ss<8, true>(o[panel], v + i * (kMnStep / 16),
                          p + ((i / 4) * 1024 + (i % 4) * kKStep) / 16, i > 0 || accumulate);
    }
    wgmma_commit();
  }

  // The tile's maximum of the thread's two heads, over all four warps.
  __device__ void tile_max(const float (&x)[2][4], float (&top)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      top[e] = fmaxf(fmaxf(x[0][e], x[0][2 + e]), fmaxf(x[1][e], x[1][2 + e]));
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
        top[e] = fmaxf(top[e], __shfl_xor_sync(0xffffffffu, top[e], d));
    }
    const uint32_t mine = smem.tops() + (lane & 3) * 8;
    if (lane < 4) st_shared(mine + warp * 32, make_float2(top[0], top[1]));
    sync();
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 other = ld_shared_float2(mine + w * 32);
      top[0] = fmaxf(top[0], other.x);
      top[1] = fmaxf(top[1], other.y);
    }
  }
  // P of the tile, as bf16 for the product and as fp32 for the row sums.
  __device__ void write_p(const float (&x)[2][4], const float (&base)[2], int p_buffer) {
    uint32_t packed[4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float p0 = ex2(__fmaf_rn(x[t][2 * half], a.c, base[0]));
        const float p1 = ex2(__fmaf_rn(x[t][2 * half + 1], a.c, base[1]));
        const int key = 64 * t + 16 * warp + 8 * half + lane / 4;
        st_shared(smem.weights() + key * 32 + (lane & 3) * 8, make_float2(p0, p1));
        packed[2 * t + half] = round_pair(p0, p1);
      }
    const int t = lane / 16, half = lane / 8 % 2, head = lane % 8;  // of the row this lane names
    stmatrix_x4_trans(
        smem.p_buffer(p_buffer) + t * 1024 + head * kRowBytes + (((2 * warp + half) ^ head) * 16),
        packed[0], packed[1], packed[2], packed[3]);
  }
  // The rule's eight partial sums: keys of one class, ascending.
  __device__ void add_row_sums(const float (&f)[2]) {
    const float f0 = __shfl_sync(0xffffffffu, f[0], lane % 8 / 2);
    const float f1 = __shfl_sync(0xffffffffu, f[1], lane % 8 / 2);
    if (warp >= 2) return;
    l = __fmul_rn(l, lane & 1 ? f1 : f0);
    const uint32_t from = smem.weights() + (4 * warp + lane / 8) * 32 + lane % 8 * 4;
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) l = __fadd_rn(l, ld_shared_float(from + i * 8 * 32));
  }

  // One tile, its S ready and P V of the tile before in flight; `live` keys of it exist. Q K of the
  // next tile runs under the softmax. One wait serves both: by then Q K has long been over, and
  // with two groups in flight across a loop's end ptxas serialises every product.
  template <bool kFirst, bool kLast>
  __device__ void step(int j, int live) {
    float x[2][4];
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool masked = kLast && 64 * t + 16 * warp + 8 * (i / 2) + lane / 4 >= live;
        x[t][i] = masked ? kMinusInf : s[t][i];
      }
    release(k_stage);
    if constexpr (kLast) {
      if (lane == 0) mbar_arrive(smem.q_empty(items & 1));
    } else {
      start_qk();
    }
    float top[2], f[2], base[2];
    tile_max(x, top);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      move_max(top[e], a.c, m[e], f[e]);
      base[e] = exponent_base(m[e]);
    }
    write_p(x, base, j & 1);
    wgmma_wait<0>();
    wgmma_keep(s[0]);
    wgmma_keep(s[1]);
    if constexpr (!kFirst) {
      release(v_stage);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        wgmma_keep(o[panel]);
#pragma unroll
        for (int i = 0; i < 4; ++i) o[panel][i] = __fmul_rn(o[panel][i], f[i & 1]);
      }
    }
    v_stage = next_stage();
    if (kLast && live < kTile)
      zero_keys<kPanels * 64>(smem.tile(v_stage), live, warp * 32 + lane, 128);
    fence_async_proxy();
    sync();
    start_pv(j & 1, !kFirst);
    add_row_sums(f);
  }

  __device__ void run_item(const Item& item) {
    mbar_wait(smem.q_full(items & 1), (items >> 1) & 1);
    m[0] = m[1] = kMinusInf;
    l = 0.0f;
    const int last = item.tiles - 1;
    const int live =
        min(item.context - (item.split << a.split_shift), 1 << a.split_shift) - last * kTile;
    start_qk();
    wgmma_wait<0>();
    wgmma_keep(s[0]);
    wgmma_keep(s[1]);
    if (last == 0) {
      step<true, true>(0, live);
    } else {
      step<true, false>(0, kTile);
      for (int j = 1; j < last; ++j) step<false, false>(j, kTile);
      step<false, true>(last, live);
    }
    ++items;
    wgmma_wait<0>();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) wgmma_keep(o[panel]);
    release(v_stage);
    float total[2];
    join_row_sums(total);
    if (item.splits == 1) {
      write_result(item, total);
    } else {
      settle();  // the previous item's count has had a whole item's time to come back
      write_split(item, total);
    }
  }

  // l of the thread's two heads: the aligned tree over the classes.
  __device__ void join_row_sums(float (&total)[2]) {
    if (warp < 2) {
      float sum = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 8));
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 16));
      if (lane < 8) st_shared(smem.sums() + (warp * 8 + lane) * 4, sum);
    }
    sync();
    const uint32_t mine = smem.sums() + (lane & 3) * 8;
    const float2 low = ld_shared_float2(mine), high = ld_shared_float2(mine + 32);
    total[0] = __fadd_rn(low.x, high.x);
    total[1] = __fadd_rn(low.y, high.y);
  }

  // f(head of the group, column of Dh, value) for what the thread holds of O^T.
  template <class F>
  __device__ void for_results(F f) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int head = 2 * (lane & 3) + e;
      if (head >= a.group) continue;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          f(e, head, 64 * (part * kPanels + panel) + 16 * warp + 8 * half + lane / 4,
            o[panel][2 * half + e]);
    }
  }
  // (head of the group, e) once for each head of the item.
  template <class F>
  __device__ void for_heads(F f) {
    if (part != 0 || warp != 0 || lane >= 4) return;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (2 * lane + e < a.group) f(e, 2 * lane + e);
  }
  __device__ int64_t result_row(const Item& item, int head) const {
    return static_cast<int64_t>(item.s.row) * a.H + item.head * a.group + head;
  }
  __device__ int64_t split_row(const Item& item, int split) const {
    return ((static_cast<int64_t>(item.segment) * a.KH + item.head) * a.splits + split) * a.group;
  }
  __device__ void write_result(const Item& item, const float (&total)[2]) {
    const float inverse[2] = {__frcp_rn(total[0]), __frcp_rn(total[1])};
    for_results([&](int e, int head, int column, float x) {
      const uint32_t rounded = round_pair(__fmul_rn(x, inverse[e]), 0.0f);
      a.o[result_row(item, head) * Dh + column].bits = static_cast<uint16_t>(rounded);
    });
    if (a.lse != nullptr)
      for_heads([&](int e, int head) { a.lse[result_row(item, head)] = row_lse(m[e], total[e]); });
  }
  __device__ void write_split(const Item& item, const float (&total)[2]) {
    const int64_t row = split_row(item, item.split);
    for_results([&](int, int head, int column, float x) {
      __stcg(a.split_o + (row + head) * Dh + column, x);
    });
    for_heads(
        [&](int e, int head) { __stcg(a.split_ml + row + head, make_float2(m[e], total[e])); });
    bar_arrive(bar.written, kHandOver);
    pending = item;
  }

  // Was the pending split its sequence's last? Then merge.
  __device__ void settle() {
    if (pending.splits == 0) return;
    bar_sync(bar.counted, kHandOver);
    const bool last = ld_shared_u32(smem.last_flag(merged & 1)) != 0;
    ++merged;
    const Item item = pending;
    pending.splits = 0;
    if (!last) return;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    const int thread = warp * 32 + lane;
    for (int i = thread; i < a.group * (Dh / 4); i += 128)
      merge_four(item, i / (Dh / 4), i % (Dh / 4));
    if (thread == 0) arrivals[item.segment * a.KH + item.head] = 0;
  }
  // Four columns of one row over all splits.
  __device__ void merge_four(const Item& item, int r, int column) {
    const auto* from =
        reinterpret_cast<const float4*>(a.split_o + (split_row(item, 0) + r) * Dh) + column;
    const float2* ml = a.split_ml + split_row(item, 0) + r;
    const int64_t o_step = static_cast<int64_t>(a.group) * (Dh / 4);
    constexpr int kAhead = 8;  // loads in flight
    float4 sum{};
    Merge so_far{};
    for (int s0 = 0; s0 < item.splits; s0 += kAhead) {
      float4 x[kAhead];
      float2 y[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (s0 + i < item.splits) {
          x[i] = __ldcg(from + (s0 + i) * o_step);
          y[i] = __ldcg(ml + static_cast<int64_t>(s0 + i) * a.group);
        }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (s0 + i == 0) {
          sum = x[i];
          so_far = {y[i].x, y[i].y};
        } else if (s0 + i < item.splits) {
          float fa, fb;
          merge_factors(so_far, y[i].x, y[i].y, fa, fb);
          sum = {merge_value(sum.x, x[i].x, fa, fb), merge_value(sum.y, x[i].y, fa, fb),
                 merge_value(sum.z, x[i].z, fa, fb), merge_value(sum.w, x[i].w, fa, fb)};
        }
    }
    const float inverse = __frcp_rn(so_far.L);
    const int64_t at = result_row(item, r);
    *reinterpret_cast<uint2*>(a.o + at * Dh + column * 4) =
        make_uint2(round_pair(__fmul_rn(sum.x, inverse), __fmul_rn(sum.y, inverse)),
                   round_pair(__fmul_rn(sum.z, inverse), __fmul_rn(sum.w, inverse)));
    if (a.lse != nullptr && column == 0) a.lse[at] = row_lse(so_far.M, so_far.L);
  }
};

// Warps: 4 consumers a machine, then a warpgroup of producers (0, 1) and publishers (2, 3).
template <int Dh, int kMachines, int kShards, bool kShared>
__global__ void __launch_bounds__(128 * (kMachines + 1), 1)
    decode_kernel(const __grid_constant__ CUtensorMap q_map,
                  const __grid_constant__ KvMaps<kShards> kv,
                  const __grid_constant__ DecodeArgs args) {
  using L = Smem<Dh, kMachines>;
  extern __shared__ uint8_t raw[];
  const int group = warp_id() / 4, role = warp_id() % 4;
  const bool loads = group == kMachines;
  const int v = loads ? role & 1 : group;
  const L smem((smem_address(raw) + 1023) & ~1023u, v);
  const bool idle = v >= kMachines;
  const int rank = kShared ? static_cast<int>(cluster_rank()) : 0, part = rank / kPartStep;
  if (loads && role < 2 && !idle && lane_id() == 0) {
    for (int s = 0; s < L::kStages; ++s) {
      mbar_init(smem.full(s), 1);
      mbar_init(smem.empty(s), kShared ? 4 * kParts : 4);
    }
    for (int i = 0; i < L::kQBuffers; ++i) {
      mbar_init(smem.q_full(i), 1);
      mbar_init(smem.q_empty(i), 4);
    }
    mbar_init_fence();
  }
  __syncthreads();
  if constexpr (kShared) {
    cluster_arrive();
    cluster_wait();
  }
  grid_launch_dependents();
  constexpr int kCluster = kShared ? kSharedCluster : 1;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int first = v * clusters + static_cast<int>(blockIdx.x) / kCluster;
  const int step = kMachines * clusters;
  if (rank % kPartStep != 0) {
    grid_dependency_wait();
  } else if (loads) {
    if (!idle && role < 2)
      produce<Dh, kMachines, kShards, kShared>(smem, kv, args, part, first, step);
    else if (!idle)
      publish<Dh, kMachines, kShared>(smem, q_map, args, v, first, step);
  } else {
    grid_dependency_wait();
    Consumer<Dh, kMachines, kShared> consumer(smem, args, part, v);
    for_items(args, first, step, [&](const Item& item) { consumer.run_item(item); });
    consumer.settle();
  }
  if constexpr (kShared) {  // neither leaves while the other may still write or signal here
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

template <int Dh, int kMachines, int kShards, bool kShared>
void launch_decode(Stream stream, const AttentionArgs& a, const DecodeArgs& args) {
  const auto kv = kv_maps<kShards>("attention", a.cache, a.KH, Dh);
  const CUtensorMap q_map =
      tensor_map("attention", a.q, TmaType::bf16, {{Dh, 1, 64}, {a.T * a.H, Dh, args.group}});
  const int64_t items = int64_t{a.n_segments} * args.splits * a.KH;
  constexpr int kCluster = kShared ? kSharedCluster : 1;
  const int64_t clusters = std::min<int64_t>(items, sm_count() / kCluster);
  const Launch l{.grid = dim3(static_cast<unsigned>(clusters * kCluster)),
                 .block = dim3(128 * (kMachines + 1)),
                 .shared_bytes = Smem<Dh, kMachines>::kBytes,
                 .cluster = kCluster,
                 .dependent = true,
                 .stream = stream_of(stream)};
  launch("attention", l, decode_kernel<Dh, kMachines, kShards, kShared>, q_map, kv, args);
}

template <int Dh, int kShards>
void launch_decode(Stream stream, const AttentionArgs& a, const DecodeArgs& args) {
  const int64_t rows = int64_t{a.n_segments} * a.KH, items = rows * args.splits;
  if constexpr (Dh == 64 * kParts) {
    // Contexts are taken to reach half of their bound, as they do where bounds are powers of two.
    const int64_t likely = rows * std::max(1, args.splits / 2);
    if (2 * kSharedCluster * likely <= sm_count())
      return launch_decode<Dh, 1, kShards, true>(stream, a, args);
  }
  items <= sm_count()  // no more items than SMs: one deep ring each
      ? launch_decode<Dh, 1, kShards, false>(stream, a, args)
      : launch_decode<Dh, 2, kShards, false>(stream, a, args);
}

int splits_of(const AttentionArgs& a, int shift) {
  return static_cast<int>(ceil_div(a.max_context, int64_t{1} << shift));
}
int64_t split_rows(const AttentionArgs& a, int shift) {
  return int64_t{a.n_segments} * splits_of(a, shift) * a.H;
}

}  // namespace

// Two items an SM at 1024 keys of context, if tiles are enough for that; splits of at most 8192.
int native_split_shift(const AttentionArgs& a) {
  int shift = kTileShift;
  while (shift < 13 && (int64_t{a.n_segments} * a.KH * 1024 >> (shift + 1)) >= 2 * sm_count())
    ++shift;
  return shift;
}

size_t decode_workspace(const AttentionArgs& a, int split_shift) {
  return static_cast<size_t>(split_rows(a, split_shift)) *
         (static_cast<size_t>(a.Dh) * sizeof(float) + sizeof(float2));
}

void decode(Stream stream, const AttentionArgs& a, int split_shift) {
  const int group = a.H / a.KH;
  require(group <= kMaxGroup, "attention",
          "H/KH = " + std::to_string(group) + ", must be at most 8");
  require(int64_t{a.n_segments} * a.KH <= kMaxArrivals, "attention",
          "n_segments * KH = " + std::to_string(int64_t{a.n_segments} * a.KH) +
              ", must be at most 65536");
  auto* split_o = static_cast<float*>(a.workspace);
  const DecodeArgs args{page_table("attention", a.cache),
                        a.segments,
                        a.o,
                        a.lse,
                        split_o,
                        reinterpret_cast<float2*>(split_o + split_rows(a, split_shift) * a.Dh),
                        a.n_segments,
                        a.H,
                        a.KH,
                        group,
                        splits_of(a, split_shift),
                        split_shift,
                        exp2_scale(a.scale),
                        a.past_ready};
  const bool local = shards_of(a.cache) == 1;
  if (a.Dh == 128)
    local ? launch_decode<128, 1>(stream, a, args) : launch_decode<128, kSlices>(stream, a, args);
  else
    local ? launch_decode<64, 1>(stream, a, args) : launch_decode<64, kSlices>(stream, a, args);
}

}  // namespace rlk::cuda::attn
