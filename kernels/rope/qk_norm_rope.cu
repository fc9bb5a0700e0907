// qk_norm_rope and its backward, kv_write.
//
// A head's row is held by Dh/8 lanes ("a group"): lane j has elements 4j..4j+3 of the lower half
// and the same of the upper half, the pairs that RoPE rotates. Sums over a head: a chain over the
// lane's lower, then upper elements; then the butterfly over the group. A group walks over several
// heads of one token, so cos and sin are read once. Backward: a block takes 16 rows counted from
// the leaf's start and one virtual slice; weight gradients are a chain over each group's (row,
// head) items in order, groups in order, then blocks of a leaf in order.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/leaves.cuh"
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

// Member by member: a reference to one of two would put both into memory.
__device__ inline Pairs select(bool first, const RawPairs& a, const RawPairs& b) {
  return to_pairs({{first ? a.lo.x : b.lo.x, first ? a.lo.y : b.lo.y},
                   {first ? a.hi.x : b.hi.x, first ? a.hi.y : b.hi.y}});
}

template <int Dh>
__device__ inline void store_pairs(bf16* row, int lane, const Pairs& p) {
  *reinterpret_cast<uint2*>(row + lane * 4) =
      make_uint2(round_pair(p.lo[0], p.lo[1]), round_pair(p.lo[2], p.lo[3]));
  *reinterpret_cast<uint2*>(row + Dh / 2 + lane * 4) =
      make_uint2(round_pair(p.hi[0], p.hi[1]), round_pair(p.hi[2], p.hi[3]));
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

// 1 / sqrt(mean of squares + eps) of the group's head.
template <int Dh>
__device__ inline float head_rstd(const Pairs& p, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(p.lo[i], p.lo[i], sum);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(p.hi[i], p.hi[i], sum);
  return __frsqrt_rn(lanes_sum<Dh / 8>(sum) * (1.0f / Dh) + eps);
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

// Where head `head` of a token's packed row goes: q, k or v head `index` of this rank.
enum class Part { q, k, v };
struct HeadPlace {
  Part part;
  int index;
};

__device__ inline HeadPlace head_place(int head, int hq, int hkv) {
  const int slice = head / (hq + 2 * hkv), j = head - slice * (hq + 2 * hkv);
  if (j < hq) return {Part::q, slice * hq + j};
  if (j < hq + hkv) return {Part::k, slice * hkv + j - hq};
  return {Part::v, slice * hkv + j - hq - hkv};
}

// Element of (sequence, position, head) in the pages of `shards`.
__device__ inline bf16* cache_row(bf16* const* shards, const KvCache& c, int64_t seq,
                                  int32_t position, int head) {
  const uint32_t entry = c.page_table[seq * c.max_pages + position / c.page_size];
  return shards[entry >> 24] + (entry & 0xffffffu) * c.page_stride +
         position % c.page_size * c.token_stride + head * c.head_stride;
}

// A block takes `tokens` rows after each other, so that the weights are read once.
template <int Dh>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_kernel(QkNormRopeArgs a, KvCache cache, bool to_cache, int tokens) {
  constexpr int kLanes = Dh / 8, kGroups = kThreads / kLanes;
  constexpr int kBatch = 4;  // heads that a group has in flight
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int heads = a.slices * (a.hq + 2 * a.hkv);
  const RawPairs wq = load_raw<Dh>(a.q_weight, lane), wk = load_raw<Dh>(a.k_weight, lane);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * tokens;
  const int64_t end = min(begin + tokens, a.T);
  int32_t next_position = a.position[begin];
  for (int64_t t = begin; t < end; ++t) {
    const int32_t position = next_position;  // read a row ahead: the angles' address hangs on it
    if (t + 1 < end) next_position = a.position[t + 1];
    const int32_t seq = to_cache ? a.seq[t] : 0;
    const Angles angles = load_angles<Dh>(a.rope, position, lane);
    // Whole warps stay in the loop: the sums exchange values between lanes.
    for (int first = 0; first < heads; first += kGroups * kBatch) {
      RawPairs raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int head = first + b * kGroups + group;
        raw[b] = load_raw<Dh>(a.qkv + (t * heads + (head < heads ? head : 0)) * Dh, lane);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b * kGroups >= heads) break;
        const int head = first + b * kGroups + group;
        Pairs x = to_pairs(raw[b]);
        const float rstd = head_rstd<Dh>(x, a.eps);
        const HeadPlace place = head_place(head, a.hq, a.hkv);
        if (place.part != Part::v) {
          const Pairs w = select(place.part == Part::q, wq, wk);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            x.lo[i] = round_to_bf16(x.lo[i] * rstd * w.lo[i]);
            x.hi[i] = round_to_bf16(x.hi[i] * rstd * w.hi[i]);
          }
          rotate(x, angles);
        }
        if (head >= heads) continue;
        bf16* out;
        if (place.part == Part::q) {
          out = a.q + (t * a.slices * a.hq + place.index) * Dh;
        } else if (to_cache) {
          if (seq < 0) continue;
          out = cache_row(place.part == Part::k ? cache.k : cache.v, cache, seq, position,
                          place.index);
        } else {
          out = (place.part == Part::k ? a.k : a.v) + (t * a.slices * a.hkv + place.index) * Dh;
        }
        store_pairs<Dh>(out, lane, x);
      }
    }
  }
}

// part [blocks][slices][2][Dh]: weight gradients of q, k over kRows rows and one slice.
__device__ inline void add_products(Pairs& sum, const Pairs& g, const Pairs& xhat) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum.lo[i] = fmaf(g.lo[i], xhat.lo[i], sum.lo[i]);
    sum.hi[i] = fmaf(g.hi[i], xhat.hi[i], sum.hi[i]);
  }
}

template <int Dh>
__global__ void __launch_bounds__(kThreads, 4)
    qk_norm_rope_bwd_kernel(QkNormRopeBwdArgs a, float* part) {
  constexpr int kLanes = Dh / 8, kGroups = kThreads / kLanes;
  __shared__ float sums[2][kGroups][Dh];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, slice = blockIdx.y;
  const int64_t row0 = a.leaves.begin[0] + static_cast<int64_t>(blockIdx.x) * kRows;
  const int local = a.hq + 2 * a.hkv;
  const int step_rows = kGroups / local, step_heads = kGroups % local;
  const RawPairs wq = load_raw<Dh>(a.q_weight, lane), wk = load_raw<Dh>(a.k_weight, lane);
  Pairs dw[2] = {};

  // A group's items: (row, head) pairs group, group + kGroups, ... The next item is in flight while
  // one is worked on.
  struct Item {
    RawPairs x, g;
    int32_t position;
  };
  const auto load = [&](int row, int head) {
    const int64_t t = row0 + row, rank_slice = t * a.slices + slice;
    const bf16* g = head < a.hq           ? a.dq + (rank_slice * a.hq + head) * Dh
                    : head < a.hq + a.hkv ? a.dk + (rank_slice * a.hkv + head - a.hq) * Dh
                                          : a.dv + (rank_slice * a.hkv + head - a.hq - a.hkv) * Dh;
    return Item{load_raw<Dh>(a.qkv + (rank_slice * local + head) * Dh, lane), load_raw<Dh>(g, lane),
                a.position[t]};
  };
  int row = group / local, head = group % local;
  Item next = load(min(row, kRows - 1), head);
  // Whole warps stay in the loop: the sums exchange values between lanes.
  for (int first = 0; first < kRows * local; first += kGroups) {
    const bool active = row < kRows;
    const Item item = next;
    const int my_row = row, my_head = head;
    row += step_rows;
    head += step_heads;
    if (head >= local) {
      head -= local;
      ++row;
    }
    next = load(min(row, kRows - 1), head);

    const Pairs x = to_pairs(item.x);
    Pairs g = to_pairs(item.g);
    const float rstd = head_rstd<Dh>(x, a.eps);
    const bool is_q = my_head < a.hq, norm = my_head < a.hq + a.hkv;
    if (norm) rotate_back(g, load_angles<Dh>(a.rope, item.position, lane));
    const Pairs w = select(is_q, wq, wk);
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
    if (!active) continue;
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
    const int64_t out = (row0 + my_row) * a.slices + slice;
    store_pairs<Dh>(a.dqkv + (out * local + my_head) * Dh, lane, g);
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[p][group][lane * 4 + i] = dw[p].lo[i];
      sums[p][group][Dh / 2 + lane * 4 + i] = dw[p].hi[i];
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; j < 2 * Dh; j += kThreads) {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) sum += sums[j / Dh][g][j % Dh];
    part[(static_cast<int64_t>(blockIdx.x) * a.slices + slice) * 2 * Dh + j] = sum;
  }
}

// One block a (leaf, slice): blocks of kRows rows in order.
__global__ void __launch_bounds__(kThreads)
    qk_wgrad_leaves_kernel(QkNormRopeBwdArgs a, const float* part) {
  const int leaf = blockIdx.x, slice = blockIdx.y;
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
    // Few rows: a block each. Many: several a block, still thousands of blocks.
    const int tokens = a.T >= 2048 ? 4 : 1;
    qk_norm_rope_kernel<Dh><<<blocks_for(a.T, tokens), kThreads, 0, stream_of(stream)>>>(
        a, to_cache ? *a.cache : KvCache{}, to_cache, tokens);
  });
  check_launch("qk_norm_rope");
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
  const dim3 grid(a.leaves.count, a.slices);
  qk_wgrad_leaves_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(a, part);
  check_launch("qk_norm_rope_bwd");
}

void kv_write(Stream stream, const KvWriteArgs& a) {
  if (a.T == 0) return;
  require(a.Dh % 8 == 0, "kv_write", "Dh = " + std::to_string(a.Dh) + ", must be a multiple of 8");
  kv_write_kernel<<<blocks_for(a.T, 1), kThreads, 0, stream_of(stream)>>>(a, *a.cache);
  check_launch("kv_write");
}

}  // namespace rlk::cuda
