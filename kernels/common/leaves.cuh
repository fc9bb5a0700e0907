#pragma once
// Token leaves of weight gradients (R7) on the device. Leaves hold a multiple of 64 rows, so blocks
// of Rows rows (a divisor of 64) counted from begin[0] are anchored at every leaf's start: a leaf's
// sum is the chain over its blocks' sums, in order.

#include <string>

#include "kernels/common/check.h"
#include "rlk/device/ops.h"

namespace rlk::cuda {

inline constexpr int kLeafBlock = 64;

inline void require_leaves(const char* op, const Leaves& leaves) {
  for (int l = 0; l < leaves.count; ++l) {
    const int64_t rows = leaves.begin[l + 1] - leaves.begin[l];
    require(rows >= 0 && rows % kLeafBlock == 0, op,
            "leaf " + std::to_string(l) + " has " + std::to_string(rows) +
                " rows, must be a multiple of 64");
  }
}

template <int Rows>
int64_t leaf_blocks(const Leaves& leaves) {
  return (leaves.begin[leaves.count] - leaves.begin[0]) / Rows;
}

// Calls launch.operator()<Count>() for count in {1, 2, 4, 8}.
template <class Launch>
void for_leaf_count(const char* op, int count, Launch&& launch) {
  switch (count) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 4:
      return launch.template operator()<4>();
    case 8:
      return launch.template operator()<8>();
  }
  require(false, op, std::to_string(count) + " parts, must be 1, 2, 4 or 8");
}

// Sum over one leaf's blocks, in order, of column j of part [blocks][width].
template <int Rows>
__device__ inline float leaf_sum(const float* part, int64_t width, int64_t j, const Leaves& leaves,
                                 int leaf) {
  float sum = 0;
  const int64_t first = (leaves.begin[leaf] - leaves.begin[0]) / Rows;
  const int64_t last = (leaves.begin[leaf + 1] - leaves.begin[0]) / Rows;
#pragma unroll 8
  for (int64_t b = first; b < last; ++b) sum += part[b * width + j];
  return sum;
}

}  // namespace rlk::cuda
