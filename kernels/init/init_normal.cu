// init_normal: a thread a Philox block of four words, which is two Box-Muller pairs: element 4q is
// the first radius times the cosine, 4q + 1 times the sine, 4q + 2 and 4q + 3 the second pair's.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/math.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    init_normal_kernel(InitNormalArgs a, uint64_t key, int64_t first_quad, int64_t quads) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= quads) return;
  const uint64_t quad = static_cast<uint64_t>(first_quad + j);
  const PhiloxBlock block =
      philox({{static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 0, 0}},
             static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float radius = sqrtf(2.0f * minus_log_uniform(block.word[2 * pair]));
    float sine, cosine;
    // The angle's fraction of a turn as a signed number: fp32 is finest around zero.
    sincospif(static_cast<float>(static_cast<int32_t>(block.word[2 * pair + 1])) * 0x1p-31f, &sine,
              &cosine);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t i = static_cast<int64_t>(quad) * 4 + 2 * pair + e - a.first;
      const float z = radius * (e == 0 ? cosine : sine);
      if (i >= 0 && i < a.n) a.w[i].bits = static_cast<uint16_t>(round_pair(a.std * z, 0.0f));
    }
  }
}

}  // namespace

void init_normal(Stream stream, const InitNormalArgs& a) {
  if (a.n == 0) return;
  const uint64_t key = mix64(a.seed ^ mix64(a.tensor));
  const int64_t first_quad = a.first / 4, quads = ceil_div(a.first + a.n, 4) - first_quad;
  init_normal_kernel<<<blocks_for(quads, kThreads), kThreads, 0, stream_of(stream)>>>(
      a, key, first_quad, quads);
  check_launch("init_normal");
}

}  // namespace rlk::cuda
