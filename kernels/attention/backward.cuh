#pragma once
// What the two backward passes share: whole rows of q, k, v, d_o through TMA. Every row in [0, S)
// is read as part of some tile, also next to a sequence's end: its products are multiplied by exact
// zeros, so it must be finite.

#include "kernels/attention/launchers.h"
#include "kernels/attention/rule.cuh"
#include "kernels/attention/work_list.h"
#include "kernels/common/check.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"

namespace rlk::cuda::attn {

// Boxes of 64 columns by the pass's tile of rows; rows past S load as zeros.
struct RowMaps {
  CUtensorMap q, d_o, k, v;
};

inline RowMaps row_maps(const char* op, const AttentionBwdArgs& a, int query_rows, int key_rows) {
  const auto map = [&](const bf16* base, int heads, int rows) {
    const int64_t columns = int64_t{heads} * a.Dh;
    return tensor_map(op, base, TmaType::bf16, {{columns, 1, 64}, {a.S, columns, rows}});
  };
  return {map(a.q, a.H, query_rows), map(a.d_o, a.H, query_rows), map(a.k, a.KH, key_rows),
          map(a.v, a.KH, key_rows)};
}

// One head's columns of a tile of rows, panel by panel; one thread.
template <int Dh>
__device__ inline void load_rows(uint32_t to, int panel_bytes, const CUtensorMap* map, uint32_t bar,
                                 int head, int row) {
#pragma unroll
  for (int p = 0; p < Dh / 64; ++p)
    tma_load_2d(to + p * panel_bytes, map, bar, head * Dh + p * 64, row);
}

}  // namespace rlk::cuda::attn
