// logprob_stats: one block of 256 lanes a (row, virtual slice); a lane holds vectors lane, lane +
// 256, ... of eight logits in registers, so that the slice is read once. Sum: per lane two chains
// (even and odd elements, in order), added, then block_sum. logprob_merge: a thread a row, slices
// ascending. logprob_bwd: elementwise with the same exp_term.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/math.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/launchers.h"
#include "kernels/logits/logits.cuh"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;

template <int Vectors>
__global__ void __launch_bounds__(kThreads) stats_kernel(LogprobStatsArgs a) {
  __shared__ float scratch[2][kThreads / 32];
  grid_launch_dependents();
  grid_dependency_wait();
  const LogitsView& v = a.logits;
  const int64_t t = blockIdx.x;
  const int slice = blockIdx.y;
  const bf16* x = v.x + t * v.ld + slice * v.slice_rows;
  const int real = real_columns(v, slice);
  const float threshold = row_threshold(a.threshold, t), inv_temp = a.inv_temp[t];

  // The raw vectors stay packed: half the registers. Masked values are replaced in place.
  Bf16x8 packed[Vectors];
#pragma unroll
  for (int j = 0; j < Vectors; ++j) {
    const int c = (j * kThreads + threadIdx.x) * kVector;
    if (c < real) packed[j] = load_vec<Bf16x8>(x + c);
  }
  float top = kMinusInf;
#pragma unroll
  for (int j = 0; j < Vectors; ++j) {
    const int left = real - (j * kThreads + threadIdx.x) * kVector;
    if (left <= 0) break;
    float value[kVector];
    unpack(packed[j], value);
    if (threshold != kMinusInf || left < kVector) {
      mask(value, threshold, left);
      packed[j] = pack(value);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) top = fmaxf(top, value[i]);
  }
  // Scaling by inv_temp >= 0 rounds monotonically: the largest product is the largest value's.
  top = block_max<kThreads>(top, scratch[0]);
  const float max = top == kMinusInf ? kMinusInf : top * inv_temp;
  const float base = top == kMinusInf ? 0.0f : max;
  float sum[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < Vectors; ++j) {
    if ((j * kThreads + threadIdx.x) * kVector >= real) break;
    float value[kVector];
    unpack(packed[j], value);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i % 2] += exp_term(value[i] * inv_temp - base);
  }
  const float all = block_sum<kThreads>(sum[0] + sum[1], scratch[1]);
  if (threadIdx.x != 0) return;
  // A NaN among the logits (an infinite one too: inf - inf) leaves one in the sum.
  if (isnan(all)) atomicOr(a.error, 1);
  const int64_t column = a.target[t] - (v.first_slice + slice) * v.slice_rows;
  float target = kMinusInf;
  if (column >= 0 && column < real) {
    const float value = to_float(x[column]);
    if (value >= threshold) target = value * inv_temp;
  }
  a.stats[t * v.slices + slice] = {max, all, target, 0.0f};
}

__global__ void __launch_bounds__(kThreads) merge_kernel(LogprobMergeArgs a) {
  grid_launch_dependents();
  grid_dependency_wait();
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= a.T) return;
  const int per_rank = kSlices / a.ranks;
  SliceStats part[kSlices];
  float max = kMinusInf, target = kMinusInf;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    part[s] = a.stats[(s / per_rank * a.T + t) * per_rank + s % per_rank];
    max = fmaxf(max, part[s].max);
    target = fmaxf(target, part[s].target);  // one slice at most has it
  }
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) sum = fmaf(part[s].sum, exp_term(part[s].max - max), sum);
  const float lse = max + logf(sum);
  a.lse[t] = lse;
  a.logp[t] = target - lse;
}

// Reads and writes the same places: dlogits may be the logits.
__global__ void __launch_bounds__(kThreads) logprob_bwd_kernel(LogprobBwdArgs a) {
  const LogitsView& v = a.logits;
  const int64_t t = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (column >= v.slices * v.slice_rows) return;
  const float inv_temp = a.inv_temp[t], lse = a.lse[t];
  const float threshold = row_threshold(a.threshold, t);
  const float scale = a.g[t] * inv_temp;
  const int64_t id = v.first_slice * v.slice_rows + column;
  const int64_t target = a.target[t] - id;
  float x[kVector];
  unpack(load_vec<Bf16x8>(v.x + t * v.ld + column), x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool inside = x[i] >= threshold && id + i < v.vocab;
    const float p = exp_term(x[i] * inv_temp - lse);
    x[i] = inside ? scale * (i == target ? p - 1.0f : p) : 0.0f;
  }
  store_vec(a.dlogits + t * v.ld + column, pack(x));
}

void require_view(const char* op, const LogitsView& v) {
  require(v.slice_rows % kVector == 0 && v.ld % kVector == 0 && aligned(v.x), op,
          "slice_rows and ld must be multiples of 8, the logits 16-byte aligned");
}

}  // namespace

void logprob_stats(Stream stream, const LogprobStatsArgs& a) {
  const LogitsView& v = a.logits;
  if (v.T == 0) return;
  require_view("logprob_stats", v);
  const dim3 grid(blocks_for(v.T, 1), v.slices);
  const int64_t vectors = ceil_div(v.slice_rows, kThreads * kVector);
  require(vectors <= 16, "logprob_stats",
          "slice_rows = " + std::to_string(v.slice_rows) + ", at most 32768");
  launch_dependent("logprob_stats", stream, grid, kThreads,
                   vectors <= 2    ? stats_kernel<2>
                   : vectors <= 10 ? stats_kernel<10>
                                   : stats_kernel<16>,
                   a);
}

void logprob_merge(Stream stream, const LogprobMergeArgs& a) {
  if (a.T == 0) return;
  launch_dependent("logprob_merge", stream, blocks_for(a.T, kThreads), kThreads, merge_kernel, a);
}

void logprob_bwd(Stream stream, const LogprobBwdArgs& a) {
  const LogitsView& v = a.logits;
  if (v.T == 0) return;
  require_view("logprob_bwd", v);
  const dim3 grid(blocks_for(v.T, 1), blocks_for(v.slices * v.slice_rows, kThreads * kVector));
  logprob_bwd_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(a);
  check_launch("logprob_bwd");
}

}  // namespace rlk::cuda
