#pragma once
// What every op on rows of logits shares: support thresholds as values, and masked reads.

#include "kernels/common/vec.cuh"
#include "rlk/device/ops.h"

namespace rlk::cuda {

inline constexpr float kMinusInf = -__builtin_huge_valf();

// Smallest value of the support from its bf16_key; 0 (and every key up to -inf's) keeps everything.
__device__ inline float threshold_value(uint32_t key) {
  constexpr uint32_t kKeyOfMinusInf = 0xffffu - 0xff80u;
  if (key <= kKeyOfMinusInf) return kMinusInf;
  const uint32_t bits = key >= 0x8000u ? key - 0x8000u : 0xffffu - key;
  return __uint_as_float(bits << 16);
}

__device__ inline float row_threshold(const uint32_t* threshold, int64_t t) {
  return threshold == nullptr ? kMinusInf : threshold_value(threshold[t]);
}

// Columns of slice j of the view that are real vocabulary, in [0, slice_rows].
__device__ inline int real_columns(const LogitsView& v, int slice) {
  const int64_t left = v.vocab - (v.first_slice + slice) * v.slice_rows;
  return static_cast<int>(left < 0 ? 0 : left < v.slice_rows ? left : v.slice_rows);
}

// -inf below the threshold and from element `left` on; NaN stays NaN.
__device__ inline void mask(float (&x)[8], float threshold, int left) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (x[i] < threshold || i >= left) x[i] = kMinusInf;
  }
}

}  // namespace rlk::cuda
