// adamw, sum_squares, tree_add: streams over flat arrays, 16 bytes of f32 an access.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/leaves.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

struct AdamWState {
  float master, m, v;
};

__device__ inline AdamWState adamw_step(AdamWState s, float grad, const AdamWArgs& a) {
  const float g = grad * a.grad_scale;
  s.m = fmaf(a.beta1, s.m, (1.0f - a.beta1) * g);
  s.v = fmaf(a.beta2, s.v, (1.0f - a.beta2) * (g * g));
  const float update = s.m * a.bias1 / (sqrtf(s.v * a.bias2) + a.eps);
  s.master = fmaf(-a.lr, fmaf(a.weight_decay, s.master, update), s.master);
  return s;
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamWArgs a) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i + 4 <= a.n) {
    F32x4 master = load_vec<F32x4>(a.master + i), m = load_vec<F32x4>(a.m + i),
          v = load_vec<F32x4>(a.v + i);
    const F32x4 grad = load_vec<F32x4>(a.grad + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const AdamWState s = adamw_step({master.x[j], m.x[j], v.x[j]}, grad.x[j], a);
      master.x[j] = s.master;
      m.x[j] = s.m;
      v.x[j] = s.v;
    }
    store_vec(a.master + i, master);
    store_vec(a.m + i, m);
    store_vec(a.v + i, v);
    *reinterpret_cast<uint2*>(a.weight + a.pieces.at(i)) =
        make_uint2(round_pair(master.x[0], master.x[1]), round_pair(master.x[2], master.x[3]));
    return;
  }
  for (int64_t j = i; j < a.n; ++j) {
    const AdamWState s = adamw_step({a.master[j], a.m[j], a.v[j]}, a.grad[j], a);
    a.master[j] = s.master;
    a.m[j] = s.m;
    a.v[j] = s.v;
    a.weight[a.pieces.at(j)].bits = static_cast<uint16_t>(round_pair(s.master, 0.0f));
  }
}

// One block a tile. Thread i takes elements 4i..4i+3 of every run of 1024, one fp64 chain each
// (products are exact there), joined as (0+1)+(2+3), then block_sum.
__global__ void __launch_bounds__(kThreads) sum_squares_kernel(SumSquaresArgs a) {
  __shared__ double scratch[kThreads / 32];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kNormTile;
  const int64_t count = min(kNormTile, a.n - first);
  const float* tile = a.x + first;
  double sum[4] = {0, 0, 0, 0};
  if (count == kNormTile) {
#pragma unroll 4
    for (int64_t i = threadIdx.x * 4; i < kNormTile; i += kThreads * 4) {
      const F32x4 x = load_vec<F32x4>(tile + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const double value = x.x[j];
        sum[j] = fma(value, value, sum[j]);
      }
    }
  } else {
    for (int64_t i = threadIdx.x * 4; i < count; i += kThreads * 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const double value = i + j < count ? tile[i + j] : 0.0f;
        sum[j] = fma(value, value, sum[j]);
      }
    }
  }
  const double all = block_sum<kThreads>((sum[0] + sum[1]) + (sum[2] + sum[3]), scratch);
  if (threadIdx.x == 0) a.out[blockIdx.x] = all;
}

template <int Count>
__device__ inline float tree_at(const TreeAddArgs& a, int64_t i) {
  float part[Count];
#pragma unroll
  for (int p = 0; p < Count; ++p) part[p] = a.part[p][a.pieces.at(i)];
  return aligned_tree<Count>(part);
}

__device__ inline void tree_store(const TreeAddArgs& a, int64_t i, float sum) {
  if (!a.out_f32) {
    static_cast<bf16*>(a.out)[i].bits = static_cast<uint16_t>(round_pair(sum, 0.0f));
    return;
  }
  float* out = static_cast<float*>(a.out) + i;
  *out = a.accumulate ? *out + sum : sum;
}

template <int Count>
__global__ void __launch_bounds__(kThreads) tree_add_kernel(TreeAddArgs a) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i + 4 > a.n) {
    for (int64_t j = i; j < a.n; ++j) tree_store(a, j, tree_at<Count>(a, j));
    return;
  }
  F32x4 part[Count], sum;
  const int64_t at = a.pieces.at(i);
#pragma unroll
  for (int p = 0; p < Count; ++p) part[p] = load_vec<F32x4>(a.part[p] + at);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float one[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) one[p] = part[p].x[j];
    sum.x[j] = aligned_tree<Count>(one);
  }
  if (!a.out_f32) {
    *reinterpret_cast<uint2*>(static_cast<bf16*>(a.out) + i) =
        make_uint2(round_pair(sum.x[0], sum.x[1]), round_pair(sum.x[2], sum.x[3]));
    return;
  }
  float* out = static_cast<float*>(a.out) + i;
  if (a.accumulate) {
    const F32x4 old = load_vec<F32x4>(out);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.x[j] = old.x[j] + sum.x[j];
  }
  store_vec(out, sum);
}

}  // namespace

void adamw(Stream stream, const AdamWArgs& a) {
  if (a.n == 0) return;
  require(
      aligned(a.master) && aligned(a.m) && aligned(a.v) && aligned(a.grad) && aligned(a.weight, 8),
      "adamw", "arrays must be 16-byte aligned");
  adamw_kernel<<<blocks_for(a.n, kThreads * 4), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("adamw");
}

void sum_squares(Stream stream, const SumSquaresArgs& a) {
  if (a.n == 0) return;
  require(aligned(a.x), "sum_squares", "x must be 16-byte aligned");
  sum_squares_kernel<<<blocks_for(a.n, kNormTile), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("sum_squares");
}

void tree_add(Stream stream, const TreeAddArgs& a) {
  if (a.n == 0) return;
  bool ok = aligned(a.out, a.out_f32 ? 16 : 8);
  for (int p = 0; p < a.count; ++p) ok = ok && aligned(a.part[p]);
  require(ok, "tree_add", "arrays must be 16-byte aligned");
  for_leaf_count("tree_add", a.count, [&]<int Count>() {
    tree_add_kernel<Count><<<blocks_for(a.n, kThreads * 4), kThreads, 0, stream_of(stream)>>>(a);
  });
  check_launch("tree_add");
}

}  // namespace rlk::cuda
