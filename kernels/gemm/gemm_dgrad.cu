// gemm_dgrad: the gradient of a projection's input. The weights are stored along the output, so B
// is MN-major.

#include "kernels/gemm/tile_launch.h"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

void check_arguments(const GemmDgradArgs& a) {
  constexpr const char* kOp = "gemm_dgrad";
  require(a.ns > 0 && a.ns % 16 == 0, kOp,
          "ns = " + std::to_string(a.ns) + ", must be a multiple of 16");
  require(a.gk > 0 && a.gk % 8 == 0, kOp,
          "gk = " + std::to_string(a.gk) + ", must be a multiple of 8");
  require(a.groups > 0, kOp, "groups = " + std::to_string(a.groups) + ", must be positive");
  require(a.lddy % 8 == 0 && a.ldw % 8 == 0 && a.lddx % 8 == 0 && a.w_slice % 8 == 0 &&
              a.w_group % 8 == 0,
          kOp, "strides must be multiples of 8");
  require(aligned(a.dy) && aligned(a.w) && aligned(a.dx), kOp, "pointers must be 16-byte aligned");
}

}  // namespace

void gemm_dgrad(Stream stream, const GemmDgradArgs& a) {
  check_arguments(a);
  if (a.T == 0) return;
  TileShape shape{};
  for (int s = 0; s < a.slices; ++s)
    shape.leaf_blocks[s] = static_cast<int>(ceil_div(a.ns, tile::kBlock));
  shape.out_f32 = a.out_f32;
  const CUtensorMap dy =
      tensor_map("gemm_dgrad dy", a.dy, TmaType::bf16,
                 {{a.ns, 1, 64}, {a.T, a.lddy, tile::kRows}, {a.slices, a.ns, 1}, {1, 8, 1}});
  const CUtensorMap w = tensor_map(
      "gemm_dgrad w", a.w, TmaType::bf16,
      {{a.gk, 1, 64}, {a.ns, a.ldw, 64}, {a.slices, a.w_slice, 1}, {a.groups, a.w_group, 1}});
  const CUtensorMap dx =
      tensor_map("gemm_dgrad dx", a.dx, store_type(a.out_f32),
                 {{a.gk, 1, store_columns(a.out_f32)}, {a.T, a.lddx, 64}, {a.groups, a.gk, 1}});
  launch_tiles<GemmKind::dgrad>("gemm_dgrad", stream, a.T, a.gk, a.groups, a.slices, dy, w, dx,
                                shape);
}

}  // namespace rlk::cuda
