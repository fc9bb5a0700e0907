// gemm: the forward contraction. Few tokens stream the weights (decode.cu), more run 128 x 128
// tiles.

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile_launch.h"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int64_t kDecodeTokens = 64;

void check_arguments(const GemmArgs& a) {
  constexpr const char* kOp = "gemm";
  require(a.slices == 1 || a.slices == 2 || a.slices == 4 || a.slices == 8, kOp,
          "slices = " + std::to_string(a.slices) + ", must be 1, 2, 4 or 8");
  require(a.ks > 0 && a.ks % 16 == 0, kOp,
          "ks = " + std::to_string(a.ks) + ", must be a multiple of 16");
  require(a.N > 0 && a.N % 8 == 0, kOp, "N = " + std::to_string(a.N) + ", must be a multiple of 8");
  require(a.ldx % 8 == 0 && a.ldw % 8 == 0 && a.ldy % 8 == 0 && a.w_slice % 8 == 0, kOp,
          "strides must be multiples of 8");
  require(aligned(a.x) && aligned(a.w) && aligned(a.y), kOp, "pointers must be 16-byte aligned");
}

}  // namespace

void gemm_tiles(Stream stream, const GemmArgs& a) {
  TileShape shape{};
  for (int s = 0; s < a.slices; ++s)
    shape.leaf_blocks[s] = static_cast<int>(ceil_div(a.ks, tile::kBlock));
  shape.out_f32 = a.out_f32;
  // A slice is a dimension of its own: its last block is zero-filled, never the neighbour's.
  const CUtensorMap x =
      tensor_map("gemm x", a.x, TmaType::bf16,
                 {{a.ks, 1, 64}, {a.T, a.ldx, tile::kRows}, {a.slices, a.ks, 1}, {1, 8, 1}});
  const CUtensorMap w =
      tensor_map("gemm w", a.w, TmaType::bf16,
                 {{a.ks, 1, 64}, {a.N, a.ldw, 64}, {a.slices, a.w_slice, 1}, {1, 8, 1}});
  const CUtensorMap y =
      tensor_map("gemm y", a.y, store_type(a.out_f32),
                 {{a.N, 1, store_columns(a.out_f32)}, {a.T, a.ldy, 64}, {1, 8, 1}});
  launch_tiles<GemmKind::forward>("gemm", stream, a.T, a.N, 1, a.slices, x, w, y, shape);
}

void gemm(Stream stream, const GemmArgs& a) {
  check_arguments(a);
  if (a.T == 0) return;
  if (a.T <= kDecodeTokens)
    gemm_decode(stream, a, decode_rows(a));
  else
    gemm_tiles(stream, a);
}

void gemm_swiglu(Stream stream, const GemmSwigluArgs& a) {
  check_arguments(a.gemm);
  require(a.fs > 0 && a.fs % 8 == 0 && a.gemm.N == a.slices * 2 * a.fs && a.gemm.ldy == a.gemm.N &&
              !a.gemm.out_f32,
          "gemm_swiglu", "takes contiguous bf16 rows of gates and ups, fs a multiple of 8");
  if (a.gemm.T == 0) return;
  if (a.gemm.T <= kDecodeTokens) return gemm_swiglu_decode(stream, a, gated_rows(a));
  gemm(stream, a.gemm);
  swiglu(stream, a.swiglu());
}

}  // namespace rlk::cuda
