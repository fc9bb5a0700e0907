// Attention forward for segments of one query: decode.
//
// A work item is one split (1024 keys) of one (segment, KV head); the group's query heads are the
// rows of a 64-row tile, of which 1 to 8 are live. A persistent CTA holds one or two independent
// machines: a consumer warpgroup, a producer warp with its ring of K/V tiles, and a publisher warp.
// Sequences of several splits leave (O, m, l) in the workspace, and whoever finishes a sequence's
// last split merges all of them in ascending order.
//
// Why so: decode only has to keep the memory busy (one machine an SM with a deep ring when there
// are few items, two when there are many, so that one's softmax hides behind the other's loads).
// Rows 8..63 of the tensor-core tile are wasted on purpose: it is the same instruction chain as
// prefill's, hence the same bits.

#include "kernels/attention/launchers.h"
#include "kernels/attention/pages.cuh"
#include "kernels/attention/rule.cuh"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"

namespace rlk::cuda::attn {
namespace {

constexpr int kMaxGroup =
    8;  // query heads of a KV head: the rows of one warp's lower accumulator half

// Arrival counts of (segment, KV head): how many splits have been published. Zero between calls:
// the merging CTA resets its own. Static, so that a workspace shared with other ops cannot dirty
// them; calls of one process are in one stream.
constexpr int kMaxArrivals = 1 << 16;
__device__ int arrivals[kMaxArrivals];

struct DecodeArgs {
  PageTable pages;
  const AttentionSegment* segments;
  bf16* o;
  float* lse;
  float* split_o;    // [n_segments, KH, splits, group, Dh]
  float2* split_ml;  // [n_segments, KH, splits, group]: m, l
  int n_segments, H, KH, group, splits;
  float c;
  bool past_ready;
};

template <int Dh, int kMachines>
struct Smem {
  static constexpr int kTileBytes = kTile * Dh * 2;
  static constexpr int kStages = 6 * (128 / Dh) / kMachines;
  static constexpr int kQBytes = 8 * Dh * 2;  // one 8-row atom for every 64 columns
  static constexpr int kQBuffers = 2;
  static constexpr int kMachineBytes = kStages * kTileBytes + kQBuffers * kQBytes;
  static constexpr int kBarrierBytes = (2 * kStages + 2 * kQBuffers) * 8 + 16;
  static constexpr int kBytes = kMachines * (kMachineBytes + kBarrierBytes) + 1024;
  static_assert(kBytes <= kMaxSharedBytes && kMachineBytes % 1024 == 0);

  uint32_t tiles, q, bars;
  __device__ Smem(uint32_t base, int machine)
      : tiles(base + machine * kMachineBytes),
        q(tiles + kStages * kTileBytes),
        bars(base + kMachines * kMachineBytes + machine * kBarrierBytes) {}
  __device__ uint32_t tile(int s) const { return tiles + s * kTileBytes; }
  __device__ uint32_t full(int s) const { return bars + s * 16; }
  __device__ uint32_t empty(int s) const { return bars + s * 16 + 8; }
  __device__ uint32_t q_buffer(int i) const { return q + i * kQBytes; }
  __device__ uint32_t q_full(int i) const { return bars + kStages * 16 + i * 16; }
  __device__ uint32_t q_empty(int i) const { return q_full(i) + 8; }
  __device__ uint32_t last_flag(int i) const {
    return bars + kStages * 16 + kQBuffers * 16 + i * 4;
  }
};

// Named barriers of machine v.
__device__ inline int bar_consumers(int v) {
  return 1 + v;
}
__device__ inline int bar_written(int v) {
  return 3 + v;
}  // warp 0 of the consumers -> publisher
__device__ inline int bar_counted(int v) {
  return 5 + v;
}  // publisher -> consumers
constexpr int kWrittenThreads = 64, kCountedThreads = 160;

// Items run over (segment, split, KV head), heads fastest; items of no key are passed over by every
// role alike.
struct Item {
  int segment, head, split, context, tiles, splits;
  AttentionSegment s;
};

template <class F>
__device__ void for_items(const DecodeArgs& a, int first, int step, F f) {
  const int total = a.n_segments * a.splits * a.KH;
  AttentionSegment next{};
  if (first < total) next = a.segments[first / a.KH / a.splits];
  for (int i = first; i < total; i += step) {
    Item item;
    item.s = next;
    if (i + step < total)
      next = a.segments[(i + step) / a.KH / a.splits];  // hides its latency behind this item
    item.head = i % a.KH;
    item.split = i / a.KH % a.splits;
    item.segment = i / a.KH / a.splits;
    item.context = item.s.len > 0 ? item.s.position + 1 : 0;
    const int keys = min(item.context - item.split * kSplit, kSplit);
    if (keys <= 0) continue;
    item.tiles = (keys + kTile - 1) / kTile;
    item.splits = (item.context + kSplit - 1) / kSplit;
    f(item);
  }
}

// ---- Producer warp: K and V tiles in the order of use
// -----------------------------------------------------------

template <int Dh, int kMachines, int kShards>
__device__ void produce(const Smem<Dh, kMachines>& smem, const KvMaps<kShards>& kv,
                        const DecodeArgs& a, int first, int step) {
  Ring<Smem<Dh, kMachines>::kStages> ring;
  if (!a.past_ready) grid_dependency_wait();
  for_items(a, first, step, [&](const Item& item) {
    PageWindow pages;
    pages.start(a.pages, item.s.seq, item.context);
    for (int j = 0; j < item.tiles; ++j) {
      const int tile = item.split * kSplitTiles + j;
      if (tile == item.s.position / kTile)
        grid_dependency_wait();  // the newest key comes from the kernel before
      for (int is_v = 0; is_v < 2; ++is_v) {
        mbar_wait(smem.empty(ring.stage), ring.phase ^ 1);
        load_tile<Dh, true>(smem.tile(ring.stage), is_v ? kv.v : kv.k, smem.full(ring.stage), pages,
                            tile, item.head, a.pages.shift);
        ring.advance();
      }
    }
  });
}

// ---- Publisher warp: queries ahead of the consumers, arrival counts behind them
// ----------------------------------

// One more split of a (segment, KV head) is in the workspace; true for the last. Release: what warp
// 0 wrote before the barrier; acquire: what the others published.
__device__ inline bool arrive(int index, int splits) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(&arrivals[index])
               : "memory");
  return before == splits - 1;
}

template <int Dh, int kMachines>
__device__ void publish(const Smem<Dh, kMachines>& smem, const CUtensorMap& q_map,
                        const DecodeArgs& a, int v, int first, int step) {
  using L = Smem<Dh, kMachines>;
  const int lane = lane_id();
  grid_dependency_wait();
  int loaded = 0, published = 0;
  // Queries are loaded an item ahead: the loop over items runs twice, one of them a step behind.
  Item behind{};
  const auto count = [&](const Item& item) {
    if (item.splits == 1) return;
    bar_sync(bar_written(v), kWrittenThreads);
    if (lane == 0)
      st_shared(smem.last_flag(published & 1),
                static_cast<uint32_t>(arrive(item.segment * a.KH + item.head, item.splits)));
    ++published;
    __syncwarp();
    bar_arrive(bar_counted(v), kCountedThreads);
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

// ---- Consumer warpgroup
// -----------------------------------------------------------------------------------------

template <int Dh, int kMachines>
struct Consumer {
  using L = Smem<Dh, kMachines>;
  const L& smem;
  const DecodeArgs& a;
  const int v, warp, lane;  // machine; warp and lane in the warpgroup
  Ring<L::kStages> ring;
  int items = 0, merged = 0;
  float s[kTile / 2], o[Dh / 2];
  uint32_t q[Dh / 16][4], p[kTile / 16][4];
  RowSums row;
  Item pending{};  // its arrival is being counted; no splits: none is

  __device__ Consumer(const L& smem_, const DecodeArgs& a_, int v_)
      : smem(smem_), a(a_), v(v_), warp(warp_id() % 4), lane(lane_id()) {}

  // Rows 0..7 of Q as the A operand, the tile's other rows zero. Rows past the group hold anything:
  // a row of a product depends on its own row of A alone.
  __device__ void load_q() {
    const int i = items & 1;
    mbar_wait(smem.q_full(i), (items >> 1) & 1);
    ++items;
#pragma unroll
    for (int g = 0; g < Dh / 32; ++g) {
      const int chunk = 4 * g + lane / 8, r = lane & 7;  // of 8 columns
      uint32_t m[4] = {0, 0, 0, 0};
      if (warp == 0)
        ldmatrix_x4(m,
                    smem.q_buffer(i) + chunk / 8 * 1024 + r * kRowBytes + ((chunk & 7) ^ r) * 16);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        q[2 * g + k][0] = m[2 * k];
        q[2 * g + k][2] = m[2 * k + 1];
        q[2 * g + k][1] = q[2 * g + k][3] = 0;
      }
    }
    if (warp == 0 && lane == 0) mbar_arrive(smem.q_empty(i));
  }
  __device__ void release() {
    if (lane == 0) mbar_arrive(smem.empty(ring.stage));
    ring.advance();
  }

  __device__ void qk() {
    mbar_wait(smem.full(ring.stage), ring.phase);
    const uint64_t k = k_major_descriptor(smem.tile(ring.stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dh / 16; ++i)
      wgmma_rs<kTile>(s, q[i], k + ((i / 4) * (kTile * kRowBytes) + (i % 4) * kKStep) / 16, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_keep(s);
    release();
  }
  __device__ void pv(bool accumulate, int live) {
    mbar_wait(smem.full(ring.stage), ring.phase);
    if (live < kTile) {
      zero_keys<Dh>(smem.tile(ring.stage), live, warp * 32 + lane, 128);
      bar_sync(bar_consumers(v), 128);
    }
    const uint64_t d = mn_major_descriptor(smem.tile(ring.stage), kTile * kRowBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i)
      wgmma_rs<Dh, true>(o, p[i], d + i * (kMnStep / 16), i > 0 || accumulate);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_keep(o);
    release();
  }
  // Warp 0 holds every live row.
  __device__ void softmax(int live) {
    if (warp != 0) return;
    if (live < kTile) {
      const int key = 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < kTile / 2; i += 4) {
        if (key + 2 * i >= live) s[i] = kMinusInf;
        if (key + 2 * i + 1 >= live) s[i + 1] = kMinusInf;
      }
    }
    softmax_tile<1>(s, row, a.c);
  }
  __device__ void rescale_and_pack(bool rescale) {
    if (rescale && warp == 0 && __any_sync(0xffffffffu, row.f[0] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < Dh / 2; i += 4) {
        o[i] = __fmul_rn(o[i], row.f[0]);
        o[i + 1] = __fmul_rn(o[i + 1], row.f[0]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      p[i][0] = warp == 0 ? round_pair(s[8 * i], s[8 * i + 1]) : 0;
      p[i][2] = warp == 0 ? round_pair(s[8 * i + 4], s[8 * i + 5]) : 0;
      p[i][1] = p[i][3] = 0;
    }
  }

  __device__ void run_item(const Item& item) {
    load_q();
    row.start_split();
    const int keys = min(item.context - item.split * kSplit, kSplit);
    qk();
    softmax(keys);
    rescale_and_pack(false);
    for (int j = 1; j < item.tiles; ++j) {
      pv(j > 1, kTile);
      qk();
      softmax(keys - j * kTile);
      rescale_and_pack(true);
    }
    pv(item.tiles > 1, keys - (item.tiles - 1) * kTile);
    const float l = row.total(0);
    if (item.splits == 1) {
      write_result(item, l);
    } else {
      settle<4>();  // the previous item's count has had a whole item's time to come back
      write_split(item, l);
    }
    bar_sync(bar_consumers(v), 128);
  }

  __device__ int64_t result_row(const Item& item, int r) const {
    return static_cast<int64_t>(item.s.row) * a.H + item.head * a.group + r;
  }
  __device__ void write_result(const Item& item, float l) {
    const int r = lane / 4;
    if (warp != 0 || r >= a.group) return;
    const float inverse = __frcp_rn(l);
    auto* to = reinterpret_cast<uint32_t*>(a.o + result_row(item, r) * Dh);
#pragma unroll
    for (int i = 0; i < Dh / 8; ++i)
      to[i * 4 + (lane & 3)] =
          round_pair(__fmul_rn(o[4 * i], inverse), __fmul_rn(o[4 * i + 1], inverse));
    if (a.lse != nullptr && (lane & 3) == 0) a.lse[result_row(item, r)] = row_lse(row.m[0], l);
  }
  __device__ int64_t split_row(const Item& item, int split) const {
    return ((static_cast<int64_t>(item.segment) * a.KH + item.head) * a.splits + split) * a.group;
  }
  __device__ void write_split(const Item& item, float l) {
    if (warp == 0) {
      const int r = lane / 4;
      if (r < a.group) {
        const int64_t at = split_row(item, item.split) + r;
        auto* to = reinterpret_cast<float2*>(a.split_o + at * Dh);
#pragma unroll
        for (int i = 0; i < Dh / 8; ++i)
          __stcg(to + i * 4 + (lane & 3), make_float2(o[4 * i], o[4 * i + 1]));
        if ((lane & 3) == 0) __stcg(a.split_ml + at, make_float2(row.m[0], l));
      }
      __syncwarp();
      bar_arrive(bar_written(v), kWrittenThreads);
    }
    pending = item;
  }

  // Was the pending split its sequence's last? Then merge, kAhead splits in flight (more when o is
  // done with).
  template <int kAhead>
  __device__ void settle() {
    if (pending.splits == 0) return;
    bar_sync(bar_counted(v), kCountedThreads);
    const bool last = ld_shared_u32(smem.last_flag(merged & 1)) != 0;
    ++merged;
    const Item item = pending;
    pending.splits = 0;
    if (!last) return;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    const int thread = warp * 32 + lane;
    for (int i = thread; i < a.group * (Dh / 4); i += 128)
      merge_four<kAhead>(item, i / (Dh / 4), i % (Dh / 4));
    if (thread == 0) arrivals[item.segment * a.KH + item.head] = 0;
  }
  // Four columns of one row over all splits.
  template <int kAhead>
  __device__ void merge_four(const Item& item, int r, int column) {
    const auto* from =
        reinterpret_cast<const float4*>(a.split_o + (split_row(item, 0) + r) * Dh) + column;
    const float2* ml = a.split_ml + split_row(item, 0) + r;
    const int64_t o_step = static_cast<int64_t>(a.group) * (Dh / 4);
    float4 sum{};
    Merge m{};
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
          m = {y[i].x, y[i].y};
        } else if (s0 + i < item.splits) {
          float fa, fb;
          merge_factors(m, y[i].x, y[i].y, fa, fb);
          sum = {merge_value(sum.x, x[i].x, fa, fb), merge_value(sum.y, x[i].y, fa, fb),
                 merge_value(sum.z, x[i].z, fa, fb), merge_value(sum.w, x[i].w, fa, fb)};
        }
    }
    const float inverse = __frcp_rn(m.L);
    const int64_t at = result_row(item, r);
    *reinterpret_cast<uint2*>(a.o + at * Dh + column * 4) =
        make_uint2(round_pair(__fmul_rn(sum.x, inverse), __fmul_rn(sum.y, inverse)),
                   round_pair(__fmul_rn(sum.z, inverse), __fmul_rn(sum.w, inverse)));
    if (a.lse != nullptr && column == 0) a.lse[at] = row_lse(m.M, m.L);
  }
};

// Warps: 4 consumers a machine, then a warpgroup of producers (0, 1) and publishers (2, 3).
template <int Dh, int kMachines, int kShards>
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
  if (loads && role < 2 && !idle && lane_id() == 0) {
    for (int s = 0; s < L::kStages; ++s) {
      mbar_init(smem.full(s), 1);
      mbar_init(smem.empty(s), 4);
    }
    for (int i = 0; i < L::kQBuffers; ++i) {
      mbar_init(smem.q_full(i), 1);
      mbar_init(smem.q_empty(i), 1);
    }
    mbar_init_fence();
  }
  __syncthreads();
  grid_launch_dependents();
  const int first = v * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int step = kMachines * static_cast<int>(gridDim.x);
  if (loads) {
    set_max_registers_down<40>();
    if (idle) return;
    if (role < 2)
      produce(smem, kv, args, first, step);
    else
      publish(smem, q_map, args, v, first, step);
  } else {
    set_max_registers_up<232>();
    grid_dependency_wait();
    Consumer<Dh, kMachines> consumer(smem, args, v);
    for_items(args, first, step, [&](const Item& item) { consumer.run_item(item); });
    consumer.template settle<8>();
  }
}

template <int Dh, int kMachines, int kShards>
void launch_decode(Stream stream, const AttentionArgs& a, const DecodeArgs& args) {
  const auto kv = kv_maps<kShards>("attention", a.cache, a.KH, Dh);
  const CUtensorMap q_map =
      tensor_map("attention", a.q, TmaType::bf16, {{Dh, 1, 64}, {a.T * a.H, Dh, args.group}});
  const int64_t items = int64_t{a.n_segments} * args.splits * a.KH;
  const Launch l{.grid = dim3(static_cast<unsigned>(std::min<int64_t>(items, sm_count()))),
                 .block = dim3(128 * (kMachines + 1)),
                 .shared_bytes = Smem<Dh, kMachines>::kBytes,
                 .dependent = true,
                 .stream = stream_of(stream)};
  launch("attention", l, decode_kernel<Dh, kMachines, kShards>, q_map, kv, args);
}

template <int Dh, int kShards>
void launch_decode(Stream stream, const AttentionArgs& a, const DecodeArgs& args) {
  const int64_t items =
      int64_t{a.n_segments} * args.splits * a.KH;  // no more items than SMs: one deep ring each
  items <= sm_count() ? launch_decode<Dh, 1, kShards>(stream, a, args)
                      : launch_decode<Dh, 2, kShards>(stream, a, args);
}

int splits_of(const AttentionArgs& a) {
  return static_cast<int>(ceil_div(a.max_context, kSplit));
}
int64_t split_rows(const AttentionArgs& a) {
  return int64_t{a.n_segments} * splits_of(a) * a.H;
}

}  // namespace

size_t decode_workspace(const AttentionArgs& a) {
  return static_cast<size_t>(split_rows(a)) *
         (static_cast<size_t>(a.Dh) * sizeof(float) + sizeof(float2));
}

void decode(Stream stream, const AttentionArgs& a) {
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
                        reinterpret_cast<float2*>(split_o + split_rows(a) * a.Dh),
                        a.n_segments,
                        a.H,
                        a.KH,
                        group,
                        splits_of(a),
                        exp2_scale(a.scale),
                        a.past_ready};
  const bool local = shards_of(a.cache) == 1;
  if (a.Dh == 128)
    local ? launch_decode<128, 1>(stream, a, args) : launch_decode<128, kSlices>(stream, a, args);
  else
    local ? launch_decode<64, 1>(stream, a, args) : launch_decode<64, kSlices>(stream, a, args);
}

}  // namespace rlk::cuda::attn
