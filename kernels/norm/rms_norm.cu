// rms_norm and its backward: one block of 256 lanes a row; a lane holds the row's 16-byte vectors
// lane, lane + 256, ... in registers, so that the row is read once. Row sums: a chain over a lane's
// elements in order, then block_sum. rms_norm_wgrad: blocks of 64 rows (leaves.cuh), a chain each;
// then the blocks of a leaf in order, then the tree.

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
constexpr int kMaxVectors = 4;  // D up to 8192

// Vectors a lane holds decide only how many registers the kernel keeps, not the order.
template <int Vectors, bool HasDelta>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArgs a) {
  __shared__ float scratch[kThreads / 32];
  grid_launch_dependents();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * a.D;
  float x[Vectors][8];
  Bf16x8 w[Vectors];
  const auto load_weights = [&] {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const int64_t d = (v * kThreads + threadIdx.x) * 8;
      if (d < a.D) w[v] = load_vec<Bf16x8>(a.w + d);
    }
  };
  if (a.w_ready) load_weights();  // from device memory, while the kernel ahead ends
  grid_dependency_wait();
  if (!a.w_ready) load_weights();
  float squares = 0;
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int64_t d = (v * kThreads + threadIdx.x) * 8;
    if (d >= a.D) break;
    unpack(load_vec<Bf16x8>(a.x + row + d), x[v]);
    if constexpr (HasDelta) {
      float delta[8];
      unpack(load_vec<Bf16x8>(a.delta + row + d), delta);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[v][i] += delta[i];
      const Bf16x8 rounded = pack(x[v]);
      store_vec(a.x_out + row + d, rounded);
      unpack(rounded, x[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    if ((v * kThreads + threadIdx.x) * 8 >= a.D) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(x[v][i], x[v][i], squares);
  }
  const float mean = block_sum<kThreads>(squares, scratch) / static_cast<float>(a.D);
  const float rstd = __frsqrt_rn(mean + a.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int64_t d = (v * kThreads + threadIdx.x) * 8;
    if (d >= a.D) break;
    float weight[8];
    unpack(w[v], weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[v][i] = x[v][i] * rstd * weight[i];
    store_vec(a.y + row + d, pack(x[v]));
  }
}

template <int Vectors>
__global__ void __launch_bounds__(kThreads) rms_norm_bwd_kernel(RmsNormBwdArgs a) {
  __shared__ float scratch[kThreads / 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * a.D;
  const float rstd = a.rstd[blockIdx.x];
  float g[Vectors][8];     // dy * w
  float xhat[Vectors][8];  // x * rstd
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int64_t d = (v * kThreads + threadIdx.x) * 8;
    if (d >= a.D) break;
    const F32x4 lo = load_vec<F32x4>(a.dy + row + d), hi = load_vec<F32x4>(a.dy + row + d + 4);
    float w[8];
    unpack(load_vec<Bf16x8>(a.x + row + d), xhat[v]);
    unpack(load_vec<Bf16x8>(a.w + d), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      g[v][i] = (i < 4 ? lo.x[i % 4] : hi.x[i % 4]) * w[i];
      xhat[v][i] *= rstd;
    }
  }
  float dot = 0;
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    if ((v * kThreads + threadIdx.x) * 8 >= a.D) break;
#pragma unroll
    for (int i = 0; i < 8; ++i) dot = fmaf(g[v][i], xhat[v][i], dot);
  }
  const float mean = block_sum<kThreads>(dot, scratch) / static_cast<float>(a.D);
#pragma unroll
  for (int v = 0; v < Vectors; ++v) {
    const int64_t d = (v * kThreads + threadIdx.x) * 8;
    if (d >= a.D) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* out = a.dres + row + d + half * 4;
      F32x4 dx = a.accumulate ? load_vec<F32x4>(out) : F32x4{{0, 0, 0, 0}};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float grad = rstd * fmaf(-xhat[v][half * 4 + i], mean, g[v][half * 4 + i]);
        dx.x[i] = a.accumulate ? dx.x[i] + grad : grad;
      }
      store_vec(out, dx);
    }
  }
}

// Columns of one block of 64 rows: part[block][d].
__global__ void __launch_bounds__(kThreads) wgrad_blocks_kernel(RmsNormWgradArgs a, float* part) {
  const int64_t d = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 4;
  if (d >= a.D) return;
  const int64_t first = a.leaves.begin[0] + static_cast<int64_t>(blockIdx.x) * kLeafBlock;
  float sum[4] = {0, 0, 0, 0};
#pragma unroll 8
  for (int64_t t = first; t < first + kLeafBlock; ++t) {
    const F32x4 dy = load_vec<F32x4>(a.dy + t * a.D + d);
    const uint2 x = *reinterpret_cast<const uint2*>(a.x + t * a.D + d);
    const float rstd = a.rstd[t];
    sum[0] = fmaf(dy.x[0], low_float(x.x) * rstd, sum[0]);
    sum[1] = fmaf(dy.x[1], high_float(x.x) * rstd, sum[1]);
    sum[2] = fmaf(dy.x[2], low_float(x.y) * rstd, sum[2]);
    sum[3] = fmaf(dy.x[3], high_float(x.y) * rstd, sum[3]);
  }
  store_vec(part + blockIdx.x * a.D + d, F32x4{{sum[0], sum[1], sum[2], sum[3]}});
}

// 32 columns a block, one warp a leaf.
template <int LeafCount>
__global__ void __launch_bounds__(LeafCount * 32)
    wgrad_leaves_kernel(RmsNormWgradArgs a, const float* part) {
  __shared__ float leaf[32][LeafCount];
  const int lane = threadIdx.x % 32, l = threadIdx.x / 32;
  const int64_t d = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  leaf[lane][l] = d < a.D ? leaf_sum<kLeafBlock>(part, a.D, d, a.leaves, l) : 0.0f;
  __syncthreads();
  if (l == 0 && d < a.D) a.dw[d] = aligned_tree<LeafCount>(leaf[lane]);
}

template <class Launch>
void for_vectors(const char* op, int64_t D, Launch&& launch) {
  require(D > 0 && D % 8 == 0 && D <= kMaxVectors * kThreads * 8, op,
          "D = " + std::to_string(D) + ", must be a multiple of 8 and at most 8192");
  switch (ceil_div(D, kThreads * 8)) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 3:
      return launch.template operator()<3>();
    default:
      return launch.template operator()<4>();
  }
}

}  // namespace

void rms_norm(Stream stream, const RmsNormArgs& a) {
  if (a.T == 0) return;
  for_vectors("rms_norm", a.D, [&]<int Vectors>() {
    launch_dependent(
        "rms_norm", stream, blocks_for(a.T, 1), kThreads,
        a.delta != nullptr ? rms_norm_kernel<Vectors, true> : rms_norm_kernel<Vectors, false>, a);
  });
}

void rms_norm_bwd(Stream stream, const RmsNormBwdArgs& a) {
  if (a.T == 0) return;
  for_vectors("rms_norm_bwd", a.D, [&]<int Vectors>() {
    rms_norm_bwd_kernel<Vectors><<<blocks_for(a.T, 1), kThreads, 0, stream_of(stream)>>>(a);
  });
  check_launch("rms_norm_bwd");
}

size_t rms_norm_wgrad_workspace(const RmsNormWgradArgs& a) {
  return static_cast<size_t>(leaf_blocks<kLeafBlock>(a.leaves) * a.D) * sizeof(float);
}

void rms_norm_wgrad(Stream stream, const RmsNormWgradArgs& a) {
  require(a.D % 8 == 0, "rms_norm_wgrad",
          "D = " + std::to_string(a.D) + ", must be a multiple of 8");
  require_leaves("rms_norm_wgrad", a.leaves);
  float* part = static_cast<float*>(a.workspace);
  if (const int64_t blocks = leaf_blocks<kLeafBlock>(a.leaves); blocks > 0) {
    const dim3 grid(blocks_for(blocks, 1), blocks_for(a.D, kThreads * 4));
    wgrad_blocks_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(a, part);
    check_launch("rms_norm_wgrad");
  }
  for_leaf_count("rms_norm_wgrad", a.leaves.count, [&]<int Count>() {
    wgrad_leaves_kernel<Count><<<blocks_for(a.D, 32), Count * 32, 0, stream_of(stream)>>>(a, part);
  });
  check_launch("rms_norm_wgrad");
}

}  // namespace rlk::cuda
