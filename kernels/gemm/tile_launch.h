#pragma once
// Launches tile.cuh for one of the three ops.

#include <algorithm>
#include <string>

#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/gemm/tile.cuh"

namespace rlk::cuda {

using TileKernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, TileShape, int);

template <GemmKind kKind>
TileKernel tile_kernel(const char* op, int leaves) {
  switch (leaves) {
    case 1:
      return tile::kernel<kKind, 1>;
    case 2:
      return tile::kernel<kKind, 2>;
    case 4:
      return tile::kernel<kKind, 4>;
    case 8:
      return tile::kernel<kKind, 8>;
    default:
      throw Error(std::string(op) + ": " + std::to_string(leaves) +
                  " slices or leaves, must be 1, 2, 4 or 8");
  }
}

// The box of an output tile: 64 rows of 128 bytes.
inline int store_columns(bool f32) {
  return f32 ? 32 : 64;
}
inline TmaType store_type(bool f32) {
  return f32 ? TmaType::f32 : TmaType::bf16;
}

// m rows of C, `groups` groups of `columns`; the caller fills the leaves of `shape`. Few rows: no
// second CTA to share B with.
inline int tile_cluster(int64_t m) {
  return m <= tile::kRows ? 1 : 2;
}

template <GemmKind kKind>
void launch_tiles(const char* op, Stream stream, int64_t m, int64_t columns, int groups, int leaves,
                  const CUtensorMap& a, const CUtensorMap& b, const CUtensorMap& y,
                  TileShape shape) {
  const int cluster = tile_cluster(m);
  shape.m_tiles = static_cast<int>(ceil_div(m, int64_t{tile::kRows} * cluster));
  shape.group_tiles = static_cast<int>(ceil_div(columns, tile::kColumns));
  shape.n_tiles = shape.group_tiles * groups;
  shape.group_columns = static_cast<int>(columns);
  const int64_t tiles = int64_t{shape.m_tiles} * shape.n_tiles;
  require(tiles <= 0x7fffffff, op, "too many tiles");
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min<int64_t>(tiles, sm_count() / cluster) * cluster));
  l.block = dim3(tile::kThreads);
  l.shared_bytes = tile::kSharedBytes;
  l.cluster = cluster;
  l.dependent = true;
  l.stream = stream_of(stream);
  launch(op, l, tile_kernel<kKind>(op, leaves), a, b, y, shape, cluster);
}

}  // namespace rlk::cuda
