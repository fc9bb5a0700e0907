#pragma once
// Host-side launch arithmetic.

#include <cstdint>

#include "kernels/common/check.h"

namespace rlk::cuda {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Blocks that cover n items of `per_block` each, as a grid's x.
inline unsigned blocks_for(int64_t n, int64_t per_block) {
  const int64_t blocks = ceil_div(n, per_block);
  require(blocks <= 0x7fffffff, "launch", "too many blocks");
  return static_cast<unsigned>(blocks);
}

inline bool aligned(const void* p, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

}  // namespace rlk::cuda
