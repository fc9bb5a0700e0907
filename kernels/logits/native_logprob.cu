// logprob_stats of native mode: a row's whole shard, in one pass, cut into as many parts as fill
// the device: so the order of its sums follows the batch and the shard. Part p leaves entry p of
// the row's statistics, entries beyond the parts are those of an empty slice.

#include <algorithm>

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/launchers.h"
#include "kernels/logits/logits.cuh"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kVector = 8;

// The sum of exp(x - max) so far.
struct Online {
  float max = kMinusInf, sum = 0.0f;
  __device__ void add(const float (&x)[kVector], float inv_temp) {
    float top = x[0];
#pragma unroll
    for (int i = 1; i < kVector; ++i) top = fmaxf(top, x[i]);
    top *= inv_temp;
    if (top > max) {
      sum *= exp_term(max - top);
      max = top;
    }
    const float base = max == kMinusInf ? 0.0f : max;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += exp_term(x[i] * inv_temp - base);
  }
};

__global__ void __launch_bounds__(kThreads)
    native_stats_kernel(LogprobStatsArgs a, int64_t real, int64_t part_columns) {
  __shared__ float scratch[2][kThreads / 32];
  const LogitsView& v = a.logits;
  const int64_t t = blockIdx.x, begin = blockIdx.y * part_columns;
  const int64_t end = min(begin + part_columns, real);
  const bf16* x = v.x + t * v.ld;
  const float threshold = row_threshold(a.threshold, t), inv_temp = a.inv_temp[t];
  Online mine;
#pragma unroll 4
  for (int64_t c = begin + threadIdx.x * kVector; c < end; c += kThreads * kVector) {
    float value[kVector];
    unpack(load_vec<Bf16x8>(x + c), value);
    const int64_t left = end - c;
    if (threshold != kMinusInf || left < kVector)
      mask(value, threshold, left < kVector ? static_cast<int>(left) : kVector);
    mine.add(value, inv_temp);
  }
  const float max = block_max<kThreads>(mine.max, scratch[0]);
  const float scale = mine.max == kMinusInf ? 1.0f : exp_term(mine.max - max);
  const float sum = block_sum<kThreads>(mine.sum * scale, scratch[1]);
  if (threadIdx.x != 0) return;
  if (isnan(sum)) atomicOr(a.error, 1);
  const int64_t column = a.target[t] - v.first_slice * v.slice_rows;
  float target = kMinusInf;
  if (column >= begin && column < end) {
    const float value = to_float(x[column]);
    if (value >= threshold) target = value * inv_temp;
  }
  a.stats[t * v.slices + blockIdx.y] = {max, sum, target, 0.0f};
  if (blockIdx.y != 0) return;
  for (int s = static_cast<int>(gridDim.y); s < v.slices; ++s)
    a.stats[t * v.slices + s] = {kMinusInf, 0.0f, kMinusInf, 0.0f};
}

}  // namespace

void native_logprob_stats(Stream stream, const LogprobStatsArgs& a) {
  const LogitsView& v = a.logits;
  if (v.T == 0) return;
  require(v.slice_rows % kVector == 0 && v.ld % kVector == 0 && aligned(v.x), "logprob_stats",
          "slice_rows and ld must be multiples of 8, the logits 16-byte aligned");
  const int64_t held = v.slices * v.slice_rows;
  const int64_t real = std::clamp<int64_t>(v.vocab - v.first_slice * v.slice_rows, 0, held);
  const int64_t parts = std::clamp<int64_t>(2 * sm_count() / v.T, 1, v.slices);
  const int64_t columns = ceil_div(ceil_div(held, parts), kVector) * kVector;
  const dim3 grid(blocks_for(v.T, 1), static_cast<unsigned>(parts));
  native_stats_kernel<<<grid, kThreads, 0, stream_of(stream)>>>(a, real, columns);
  check_launch("logprob_stats");
}

}  // namespace rlk::cuda
