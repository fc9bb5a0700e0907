// qk_norm_rope and its backward, kv_write.
//
// A head's row is held by Dh/8 lanes ("a group"): lane j has elements 4j..4j+3
// of the lower half and the same of the upper half, the pairs that RoPE
// rotates. Sums over a head: a chain over the lane's lower, then upper
// elements; then the butterfly over the group. Forward: a warp takes a few
// heads of one token and one part (q, k or v), all of them in flight at once:
// it is bound by its instructions before it is by memory, so nothing of a place
// is computed head by head. Backward: a block takes 16 rows counted from the
// leaf's start and one virtual slice; weight gradients are a chain over each
// group's (row, head) items in order, groups in order, then blocks of a leaf in
// order.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/leaves.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;  // of a block of the backward: divides a leaf's multiple of 64

// Eight elements of a head's row: four of each half.
struct Pairs {
  float lo[4], hi[4];
};

__device__ inline void unpack4(uint2 v, float (&x)[4]) {
  x[0] = low_float(v.x);
  x[1] = high_float(v.x);
  x[2] = low_float(v.y);
  x[3] = high_float(v.y);
}

// The same as read: what a group has in flight, and keeps of the weights.
struct RawPairs {
  uint2 lo, hi;
};

template <int Dh>
__device__ inline RawPairs load_raw(const bf16* row, int lane) {
  return {*reinterpret_cast<const uint2*>(row + lane * 4),
          *reinterpret_cast<const uint2*>(row + Dh / 2 + lane * 4)};
}

__device__ inline Pairs to_pairs(const RawPairs& raw) {
  Pairs p;
  unpack4(raw.lo, p.lo);
  unpack4(raw.hi, p.hi);
  return p;
}

__device__ inline RawPairs round_pairs(const Pairs& p) {
  return {{round_pair(p.lo[0], p.lo[1]), round_pair(p.lo[2], p.lo[3])},
          {round_pair(p.hi[0], p.hi[1]), round_pair(p.hi[2], p.hi[3])}};
}

template <int Dh>
__device__ inline void store_raw(bf16* row, int lane, const RawPairs& raw) {
  *reinterpret_cast<uint2*>(row + lane * 4) = raw.lo;
  *reinterpret_cast<uint2*>(row + Dh / 2 + lane * 4) = raw.hi;
}

// cos and sin of the lane's four frequencies.
struct Angles {
  float cos[4], sin[4];
};

template <int Dh>
__device__ inline Angles load_angles(const float* rope, int64_t position, int lane) {
  const float* row = rope + position * Dh + lane * 8;
  const F32x4 a = load_vec<F32x4>(row), b = load_vec<F32x4>(row + 4);
  return {{a.x[0], a.x[2], b.x[0], b.x[2]}, {a.x[1], a.x[3], b.x[1], b.x[3]}};
}

// Sum of squares of the group's head.
template <int Dh>
__device__ inline float head_squares(const Pairs& p) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(p.lo[i], p.lo[i], sum);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(p.hi[i], p.hi[i], sum);
  return lanes_sum<Dh / 8>(sum);
}

// 1 / sqrt(mean of squares + eps).
template <int Dh>
__device__ inline float rstd_of(float squares, float eps) {
  return __frsqrt_rn(squares * (1.0f / Dh) + eps);
}

// The same of four heads, each root taken by every fourth lane alone.
template <int Dh>
__device__ inline void rstd_of_four(float (&x)[4], float eps) {
  constexpr int kLanes = Dh / 8;
  if constexpr (kLanes >= 4) {
    const int lane = threadIdx.x;
    const float even = lane & 2 ? x[2] : x[0], odd = lane & 2 ? x[3] : x[1];
    const float own = rstd_of<Dh>(lane & 1 ? odd : even, eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __shfl_sync(0xffffffffu, own, i, kLanes);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = rstd_of<Dh>(x[i], eps);
  }
}

__device__ inline void rotate(Pairs& p, const Angles& a) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float lo = p.lo[i], hi = p.hi[i];
    p.lo[i] = fmaf(lo, a.cos[i], -(hi * a.sin[i]));
    p.hi[i] = fmaf(hi, a.cos[i], lo * a.sin[i]);
  }
}

__device__ inline void rotate_back(Pairs& p, const Angles& a) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float lo = p.lo[i], hi = p.hi[i];
    p.lo[i] = fmaf(lo, a.cos[i], hi * a.sin[i]);
    p.hi[i] = fmaf(hi, a.cos[i], -(lo * a.sin[i]));
  }
}

// Element of (sequence, position, head) in the pages of `shards`.
__device__ inline bf16* cache_row(bf16* const* shards, const KvCache& c, int64_t seq,
                                  int32_t position, int head) {
  const uint32_t entry = c.page_table[seq * c.max_pages + position / c.page_size];
  return shards[entry >> 24] + (entry & 0xffffffu) * c.page_stride +
         position % c.page_size * c.token_stride + head * c.head_stride;
}

constexpr int kHeadsAtOnce = 4;       // of a group, all in flight before the first is used
constexpr int kForwardThreads = 128;  // 64 do as well; 256 take 3 % longer at 4096 tokens
template <int Dh>
constexpr int kWarpHeads = kHeadsAtOnce * 256 / Dh;  // of a warp: 32 lanes are 256/Dh groups

// The warps of a token: chunks of kWarpHeads heads of q, then of k, then of v.
// The slice of head i, i / hq, is i * q_inverse >> 16.
struct Chunks {
  int q, k, q_inverse, k_inverse;
  __device__ int all() const { return q + 2 * k; }
};

// kReady: QkNormRopeArgs::ready.
template <int Dh, bool kReady>
__global__ void __launch_bounds__(kForwardThreads)
    qk_norm_rope_kernel(QkNormRopeArgs a, KvCache cache, bool to_cache, Chunks chunks) {
  constexpr int kLanes = Dh / 8, kGroups = 32 / kLanes;
  grid_launch_dependents();
  if constexpr (!kReady) grid_dependency_wait();
  const unsigned task = blockIdx.x * (kForwardThreads / 32) + threadIdx.x / 32;
  const int64_t t = task / static_cast<unsigned>(chunks.all());
  if (t >= a.T) return;
  const int chunk = static_cast<int>(task % static_cast<unsigned>(chunks.all()));
  const bool is_q = chunk < chunks.q, is_v = chunk >= chunks.q + chunks.k;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x % 32 / kLanes;
  const int32_t position = a.position[t];

  // Head i of the part is head i % per of slice i / per.
  const int local = a.hq + 2 * a.hkv, per = is_q ? a.hq : a.hkv, count = a.slices * per;
  const int inverse = is_q ? chunks.q_inverse : chunks.k_inverse;
  const int before = is_q ? 0 : is_v ? a.hq + a.hkv : a.hq;  // heads of a slice before the part
  const int chunks_before = is_q ? 0 : is_v ? chunks.q + chunks.k : chunks.q;
  const int first = (chunk - chunks_before) * kWarpHeads<Dh> + group;
  RawPairs raw[kHeadsAtOnce];
  const auto load_heads = [&] {
    const bf16* in = a.qkv + t * (a.slices * local * Dh);
#pragma unroll
    for (int b = 0; b < kHeadsAtOnce; ++b) {
      const int i = min(first + b * kGroups, count - 1);
      raw[b] = load_raw<Dh>(in + (i + (i * inverse >> 16) * (local - per) + before) * Dh, lane);
    }
  };
  if constexpr (!kReady) load_heads();
  bf16* out = (is_q ? a.q : is_v ? a.v : a.k) + t * (count * Dh);
  int64_t stride = Dh;
  if (to_cache && !is_q) {
    const int32_t seq = a.seq[t];
    if (seq < 0) return;
    out = cache_row(is_v ? cache.v : cache.k, cache, seq, position, 0);
    stride = cache.head_stride;
  }
  out += first * stride;
  Pairs w{};
  Angles angles{};
  if (!is_v) {
    w = to_pairs(load_raw<Dh>(is_q ? a.q_weight : a.k_weight, lane));
    angles = load_angles<Dh>(a.rope, position, lane);
  }
  if constexpr (kReady) {
    grid_dependency_wait();
    load_heads();
  }
  if (!is_v) {
    float rstd[kHeadsAtOnce];
#pragma unroll
    for (int b = 0; b < kHeadsAtOnce; ++b) rstd[b] = head_squares<Dh>(to_pairs(raw[b]));
    rstd_of_four<Dh>(rstd, a.eps);
#pragma unroll
    for (int b = 0; b < kHeadsAtOnce; ++b) {
      Pairs x = to_pairs(raw[b]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x.lo[i] = x.lo[i] * rstd[b] * w.lo[i];
        x.hi[i] = x.hi[i] * rstd[b] * w.hi[i];
      }
      x = to_pairs(round_pairs(x));
      rotate(x, angles);
      raw[b] = round_pairs(x);
    }
  }
#pragma unroll
  for (int b = 0; b < kHeadsAtOnce; ++b)
    if (first + b * kGroups < count) store_raw<Dh>(out + b * kGroups * stride, lane, raw[b]);
}

// part [blocks][slices][2][Dh]: weight gradients of q, k over kRows rows and
// one slice.
__device__ inline void add_products(Pairs& sum, const Pairs& g, const Pairs& xhat) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum.lo[i] = fmaf(g.lo[i], xhat.lo[i], sum.lo[i]);
    sum.hi[i] = fmaf(g.hi[i], xhat.hi[i], sum.hi[i]);
  }
}

// A block's items: (row, head) pairs, item i of group i % groups. x and g of
// the next kDepth items of every group are on their way to shared memory; a
// group's lanes, all of one warp, copy 16 bytes each and read their halves.
template <int Dh>
struct Items {
  static constexpr int kLanes = Dh / 8, kGroups = kThreads / kLanes, kDepth = 4;
  static constexpr int kSlotBytes = 2 * Dh * 2;  // x, then g

  const QkNormRopeBwdArgs& a;
  const int64_t row0;
  const int slice, lane, local;
  const uint32_t slots;  // of the group, one a depth
  const int step_rows, step_heads;

  struct At {
    int row, head;
  };
  __device__ At first(int group) const { return {group / local, group % local}; }
  __device__ void advance(At& at) const {
    at.row += step_rows;
    at.head += step_heads;
    if (at.head < local) return;
    at.head -= local;
    ++at.row;
  }
  __device__ int64_t packed(const At& at) const {  // row of qkv and dqkv
    return ((row0 + at.row) * a.slices + slice) * local + at.head;
  }
  __device__ uint32_t slot(int n) const { return slots + n % kDepth * (kGroups * kSlotBytes); }

  // Starts the group's n-th item, where there is one; v heads need no x.
  __device__ void start(int n, const At& at) const {
    if (at.row < kRows) {
      const int64_t rank_slice = (row0 + at.row) * a.slices + slice;
      const int k = at.head - a.hq, v = k - a.hkv;
      const bf16* g = k < 0   ? a.dq + (rank_slice * a.hq + at.head) * Dh
                      : v < 0 ? a.dk + (rank_slice * a.hkv + k) * Dh
                              : a.dv + (rank_slice * a.hkv + v) * Dh;
      const uint32_t to = slot(n) + lane * 16;
      if (v < 0) cp_async_16(to, a.qkv + packed(at) * Dh + lane * 8);
      cp_async_16(to + Dh * 2, g + lane * 8);
    }
    cp_async_commit();
  }
  __device__ RawPairs read(int n, int part) const {
    const uint32_t from = slot(n) + part * (Dh * 2) + lane * 8;
    return {ld_shared_u32x2(from), ld_shared_u32x2(from + Dh)};
  }
};

template <int Dh>
__global__ void __launch_bounds__(kThreads, 4)
    qk_norm_rope_bwd_kernel(QkNormRopeBwdArgs a, float* part) {
  using L = Items<Dh>;
  constexpr int kLanes = L::kLanes, kGroups = L::kGroups;
  union Shared {
    uint4 slots[L::kDepth * kGroups * L::kSlotBytes / 16];
    float sums[2][kGroups][Dh];
  };
  __shared__ Shared shared;
  grid_launch_dependents();
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, slice = blockIdx.y;
  const int64_t row0 = a.leaves.begin[0] + static_cast<int64_t>(blockIdx.x) * kRows;
  const int local = a.hq + 2 * a.hkv;
  const L items{a,
                row0,
                slice,
                lane,
                local,
                smem_address(shared.slots) + group * L::kSlotBytes,
                kGroups / local,
                kGroups % local};
  typename L::At at = items.first(group), ahead = at;
#pragma unroll
  for (int n = 0; n < L::kDepth; ++n, items.advance(ahead)) items.start(n, ahead);
  // Lane r of 16 keeps the position of row r; cos and sin are read an item
  // ahead.
  const int32_t positions = a.position[row0 + threadIdx.x % kRows];
  const auto angles_of = [&](int row) {
    const int32_t position = __shfl_sync(0xffffffffu, positions, row % kRows);
    return load_angles<Dh>(a.rope, position, lane);
  };
  Angles next_angles = angles_of(at.row);
  Pairs dw[2] = {};
  // Whole warps stay in the loop: the sums exchange values between lanes.
#pragma unroll 1
  for (int n = 0; n * kGroups < kRows * local; ++n) {
    const bool is_q = at.head < a.hq, norm = at.head < a.hq + a.hkv;
    cp_async_wait<L::kDepth - 1>();
    __syncwarp();
    const Pairs x = to_pairs(norm ? items.read(n, 0) : RawPairs{});
    Pairs g = to_pairs(items.read(n, 1));
    __syncwarp();  // all have read before the slot is filled again
    items.start(n + L::kDepth, ahead);
    items.advance(ahead);
    const typename L::At now = at;
    const Angles angles = next_angles;
    items.advance(at);
    next_angles = angles_of(at.row);

    const float rstd = rstd_of<Dh>(head_squares<Dh>(x), a.eps);
    if (norm) rotate_back(g, angles);
    const Pairs w = to_pairs(load_raw<Dh>(is_q ? a.q_weight : a.k_weight, lane));  // from L1
    Pairs xhat, gw;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      xhat.lo[i] = x.lo[i] * rstd;
      xhat.hi[i] = x.hi[i] * rstd;
      gw.lo[i] = g.lo[i] * w.lo[i];
      gw.hi[i] = g.hi[i] * w.hi[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) dot = fmaf(gw.lo[i], xhat.lo[i], dot);
#pragma unroll
    for (int i = 0; i < 4; ++i) dot = fmaf(gw.hi[i], xhat.hi[i], dot);
    const float mean = lanes_sum<kLanes>(dot) * (1.0f / Dh);
    if (now.row >= kRows) continue;
    if (norm) {
      if (is_q)  // not dw[...]: registers have no run-time index
        add_products(dw[0], g, xhat);
      else
        add_products(dw[1], g, xhat);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        g.lo[i] = rstd * fmaf(-xhat.lo[i], mean, gw.lo[i]);
        g.hi[i] = rstd * fmaf(-xhat.hi[i], mean, gw.hi[i]);
      }
    }
    store_raw<Dh>(a.dqkv + items.packed(now) * Dh, lane, round_pairs(g));
  }
  cp_async_wait<0>();
  __syncthreads();  // the slots become the sums
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared.sums[p][group][lane * 4 + i] = dw[p].lo[i];
      shared.sums[p][group][Dh / 2 + lane * 4 + i] = dw[p].hi[i];
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < 2 * Dh; j += kThreads) {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) sum += shared.sums[j / Dh][g][j % Dh];
    part[(static_cast<int64_t>(blockIdx.x) * a.slices + slice) * 2 * Dh + j] = sum;
  }
}

// One block a (leaf, slice): blocks of kRows rows in order. Launched while the
// kernel above ends.
__global__ void __launch_bounds__(kThreads)
    qk_wgrad_leaves_kernel(QkNormRopeBwdArgs a, const float* part) {
  const int leaf = blockIdx.x, slice = blockIdx.y;
  grid_dependency_wait();
  for (int j = threadIdx.x; j < 2 * a.Dh; j += kThreads) {
    const int64_t width = static_cast<int64_t>(a.slices) * 2 * a.Dh;
    const float sum = leaf_sum<kRows>(part, width, slice * 2 * a.Dh + j, a.leaves, leaf);
    float* out = j < a.Dh ? a.q_dw : a.k_dw;
    out[(leaf * a.slices + slice) * a.Dh + j % a.Dh] = sum;
  }
}

// One block a row; 16-byte vectors.
__global__ void __launch_bounds__(kThreads) kv_write_kernel(KvWriteArgs a, KvCache cache) {
  const int64_t t = blockIdx.x;
  const int32_t seq = a.seq[t];
  if (seq < 0) return;
  const int per_head = a.Dh / 8, vectors = a.KH * per_head;
  for (int j = threadIdx.x; j < 2 * vectors; j += kThreads) {
    const bool is_v = j >= vectors;
    const int vector = is_v ? j - vectors : j;
    const int head = vector / per_head, d = vector % per_head * 8;
    bf16* to = cache_row(is_v ? cache.v : cache.k, cache, seq, a.position[t], head);
    store_vec(to + d, load_vec<Bf16x8>((is_v ? a.v : a.k) + (t * vectors + vector) * 8));
  }
}

template <class Launch>
void for_head_dim(const char* op, int Dh, Launch&& launch) {
  switch (Dh) {
    case 16:
      return launch.template operator()<16>();
    case 32:
      return launch.template operator()<32>();
    case 64:
      return launch.template operator()<64>();
    case 128:
      return launch.template operator()<128>();
    case 256:
      return launch.template operator()<256>();
  }
  require(false, op, "Dh = " + std::to_string(Dh) + ", must be 16, 32, 64, 128 or 256");
}

}  // namespace

void qk_norm_rope(Stream stream, const QkNormRopeArgs& a) {
  if (a.T == 0) return;
  const bool to_cache = a.k == nullptr;
  require(!to_cache || a.cache != nullptr, "qk_norm_rope", "needs k and v or a cache");
  for_head_dim("qk_norm_rope", a.Dh, [&]<int Dh>() {
    const auto chunks_of = [&](int heads) {
      return static_cast<int>(ceil_div(a.slices * heads, kWarpHeads<Dh>));
    };
    // What makes Chunks' inverses exact.
    require(a.slices * a.hq * a.hq < 65536 && a.slices * a.hkv * a.hkv < 65536, "qk_norm_rope",
            std::to_string(a.slices) + " slices of " + std::to_string(a.hq) + " + " +
                std::to_string(a.hkv) + " heads, slices * heads^2 must be less than 65536");
    const Chunks chunks{chunks_of(a.hq), chunks_of(a.hkv), 65535 / a.hq + 1, 65535 / a.hkv + 1};
    const int64_t warps = a.T * (chunks.q + 2 * chunks.k);
    require(warps <= 0x7fffffff, "qk_norm_rope",
            "T = " + std::to_string(a.T) + ", too many rows for a grid");
    launch_dependent("qk_norm_rope", stream, blocks_for(warps, kForwardThreads / 32),
                     kForwardThreads,
                     a.ready ? qk_norm_rope_kernel<Dh, true> : qk_norm_rope_kernel<Dh, false>, a,
                     to_cache ? *a.cache : KvCache{}, to_cache, chunks);
  });
}

size_t qk_norm_rope_bwd_workspace(const QkNormRopeBwdArgs& a) {
  return static_cast<size_t>(leaf_blocks<kRows>(a.leaves)) * a.slices * 2 * a.Dh * sizeof(float);
}

void qk_norm_rope_bwd(Stream stream, const QkNormRopeBwdArgs& a) {
  require_leaves("qk_norm_rope_bwd", a.leaves);
  require(a.leaves.begin[0] == 0 && a.leaves.begin[a.leaves.count] == a.T, "qk_norm_rope_bwd",
          "the leaves must cover the T rows");
  float* part = static_cast<float*>(a.workspace);
  if (a.T > 0) {
    const dim3 grid(blocks_for(a.T, kRows), a.slices);
    for_head_dim("qk_norm_rope_bwd", a.Dh, [&]<int Dh>() {
      qk_norm_rope_bwd_kernel<Dh><<<grid, kThreads, 0, stream_of(stream)>>>(a, part);
    });
    check_launch("qk_norm_rope_bwd");
  }
  launch("qk_norm_rope_bwd",
         {.grid = dim3(a.leaves.count, a.slices),
          .block = dim3(kThreads),
          .dependent = true,
          .stream = stream_of(stream)},
         qk_wgrad_leaves_kernel, a, part);
}

void kv_write(Stream stream, const KvWriteArgs& a) {
  if (a.T == 0) return;
  require(a.Dh % 8 == 0, "kv_write", "Dh = " + std::to_string(a.Dh) + ", must be a multiple of 8");
  kv_write_kernel<<<blocks_for(a.T, 1), kThreads, 0, stream_of(stream)>>>(a, *a.cache);
  check_launch("kv_write");
}

}  // namespace rlk::cuda
