#pragma once
// A warp's 16 finished rows from the accumulator layout to global memory: through a swizzled patch
// of its own shared memory, so that every store is 16 bytes and a block's last rows need no other
// path.

#include <cstdint>

#include "kernels/attention/rule.cuh"

namespace rlk::cuda::attn {

template <int Dh>
inline constexpr int kRowPatchBytes = 16 * Dh * 2;

// acc[4j + 2*half + c], scaled by scale[half], rounded once. `live`: rows of the 16 that exist. to:
// row 0 of the 16.
template <int Dh>
__device__ inline void store_rows(uint32_t patch, const float (&acc)[Dh / 2],
                                  const float (&scale)[2], bf16* to, int64_t row_stride, int live) {
  constexpr int kChunks = Dh * 2 / 16;  // of a row
  const int lane = lane_id();
  const auto slot = [&](int row, int chunk) {
    return patch + row * (Dh * 2) + ((chunk ^ (row & 7)) * 16);
  };
  const auto two = [&](int i, int half) {
    return round_pair(__fmul_rn(acc[i], scale[half]), __fmul_rn(acc[i + 1], scale[half]));
  };
  __syncwarp();
#pragma unroll
  for (int g = 0; g < Dh / 16; ++g)
    stmatrix_x4(slot(lane & 15, 2 * g + lane / 16), two(8 * g, 0), two(8 * g + 2, 1),
                two(8 * g + 4, 0), two(8 * g + 6, 1));
  __syncwarp();
  constexpr int kRowsAtOnce = 32 / kChunks;
#pragma unroll
  for (int r = 0; r < 16; r += kRowsAtOnce) {
    const int row = r + lane / kChunks, chunk = lane % kChunks;
    const float4 v = ld_shared_float4(slot(row, chunk));
    if (row < live) *reinterpret_cast<float4*>(to + row * row_stride + chunk * 8) = v;
  }
  __syncwarp();
}

}  // namespace rlk::cuda::attn
