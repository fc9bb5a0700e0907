// init_uniform: a thread a Philox block, which is eight neighbouring elements of a row; the block
// at a row's edge is shared with what lies outside the rectangle.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"
#include "rlk/base/philox.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    init_uniform_kernel(InitUniformArgs a, int64_t blocks_a_row) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = j / blocks_a_row;
  if (row >= a.rows) return;
  const int64_t begin = a.first + row * a.ld;
  const int64_t index = begin / kHalfWords + j % blocks_a_row;
  const PhiloxBlock block = half_word_block(a.key, static_cast<uint64_t>(index));
#pragma unroll
  for (int e = 0; e < kHalfWords; ++e) {
    const int64_t c = index * kHalfWords + e - begin;
    if (c < 0 || c >= a.cols) continue;
    const float value = uniform_value(half_word(block, e), a.centre, a.step);
    a.w[row * a.cols + c].bits = static_cast<uint16_t>(round_pair(value, 0.0f));
  }
}

}  // namespace

void init_uniform(Stream stream, const InitUniformArgs& a) {
  if (a.rows == 0 || a.cols == 0) return;
  const int64_t blocks_a_row =
      ceil_div(a.cols, kHalfWords) + 1;  // one more: a row may start inside
  init_uniform_kernel<<<blocks_for(a.rows * blocks_a_row, kThreads), kThreads, 0,
                        stream_of(stream)>>>(a, blocks_a_row);
  check_launch("init_uniform");
}

}  // namespace rlk::cuda
