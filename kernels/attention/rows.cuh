#pragma once
// What the passes' consumer warps share: the item they are handed, and their 16 finished rows from
// the accumulator layout to global memory, through a swizzled patch of the warp's own shared
// memory, so that every store is 16 bytes and a block's last rows need no other path.

#include <cstdint>

#include "kernels/attention/rule.cuh"

namespace rlk::cuda::attn {

// Four words of a slot that lane 0 hands back by its arrival at an mbarrier: lane 0 alone reads
// them, so nothing but its own order is needed.
__device__ inline int4 read_slot(uint32_t address) {
  float4 raw{};
  if (lane_id() == 0) raw = ld_shared_float4(address);
  int4 v = __builtin_bit_cast(int4, raw);
  v.x = __shfl_sync(0xffffffffu, v.x, 0);
  v.y = __shfl_sync(0xffffffffu, v.y, 0);
  v.z = __shfl_sync(0xffffffffu, v.z, 0);
  v.w = __shfl_sync(0xffffffffu, v.w, 0);
  return v;
}

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
