#pragma once
// 16-byte loads and stores of bf16 and f32, and the conversions every row op shares.

#include <cuda_bf16.h>

#include <cstdint>

#include "rlk/base/bf16.h"

namespace rlk::cuda {

// Eight bf16 as one 16-byte word.
struct alignas(16) Bf16x8 {
  uint32_t pair[4];
};
struct alignas(16) F32x4 {
  float x[4];
};

template <class T>
__device__ inline T load_vec(const void* p) {
  static_assert(sizeof(T) == 16);
  const uint4 raw = *static_cast<const uint4*>(p);
  return __builtin_bit_cast(T, raw);
}

template <class T>
__device__ inline void store_vec(void* p, const T& value) {
  static_assert(sizeof(T) == 16);
  *static_cast<uint4*>(p) = __builtin_bit_cast(uint4, value);
}

__device__ inline float low_float(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_float(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ inline void unpack(const Bf16x8& v, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = low_float(v.pair[i]);
    x[2 * i + 1] = high_float(v.pair[i]);
  }
}

// Two floats rounded to nearest even, the first in the low half.
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline Bf16x8 pack(const float (&x)[8]) {
  Bf16x8 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.pair[i] = round_pair(x[2 * i], x[2 * i + 1]);
  return v;
}

__device__ inline float round_to_bf16(float x) {
  return low_float(round_pair(x, 0.0f));
}

}  // namespace rlk::cuda
