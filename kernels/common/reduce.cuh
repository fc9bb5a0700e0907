#pragma once
// Sums and maxima over a warp and a block in one fixed order: a butterfly over the lanes (an
// exchange of two addends gives both sides the same bits), then the warps' results in warp order.

#include <cstdint>

namespace rlk::cuda {

template <int Lanes = 32, class T>
__device__ inline T lanes_sum(T x) {
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// All threads get the sum. `scratch` holds Threads/32 values and is free again after the caller's
// next barrier.
template <int Threads, class T>
__device__ inline T block_sum(T x, T* scratch) {
  x = lanes_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = scratch[0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) sum += scratch[w];
  return sum;
}

template <int Threads>
__device__ inline float block_max(float x, float* scratch) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float top = scratch[0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) top = fmaxf(top, scratch[w]);
  return top;
}

// Aligned tree over the first Count (1, 2, 4, 8) of `part`: ((0+1)+(2+3))+((4+5)+(6+7)).
template <int Count, class T>
__device__ inline T aligned_tree(const T* part) {
  if constexpr (Count == 1) {
    return part[0];
  } else {
    return aligned_tree<Count / 2>(part) + aligned_tree<Count / 2>(part + Count / 2);
  }
}

}  // namespace rlk::cuda
