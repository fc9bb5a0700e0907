// gemm_wgrad: the gradient of a projection's weights, a contraction over tokens. Both operands are
// stored across it: MN-major.

#include "kernels/gemm/tile_launch.h"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

void check_arguments(const GemmWgradArgs& a) {
  constexpr const char* kOp = "gemm_wgrad";
  require(a.N > 0 && a.N % 8 == 0, kOp, "N = " + std::to_string(a.N) + ", must be a multiple of 8");
  require(a.gk > 0 && a.gk % 8 == 0, kOp,
          "gk = " + std::to_string(a.gk) + ", must be a multiple of 8");
  require(a.groups > 0, kOp, "groups = " + std::to_string(a.groups) + ", must be positive");
  require(a.lddy % 8 == 0 && a.ldx % 8 == 0 && a.lddw % 8 == 0 && a.dw_group % 8 == 0, kOp,
          "strides must be multiples of 8");
  require(aligned(a.dy) && aligned(a.x) && aligned(a.dw), kOp, "pointers must be 16-byte aligned");
  for (int l = 0; l < a.leaves.count; ++l) {
    const int64_t length = a.leaves.begin[l + 1] - a.leaves.begin[l];
    require(length >= 0 && length % 64 == 0, kOp,
            "leaf " + std::to_string(l) + " of " + std::to_string(length) +
                " rows, must be a multiple of 64");
  }
}

void zero_gradient(Stream stream, const GemmWgradArgs& a) {
  const size_t row = static_cast<size_t>(a.gk) * sizeof(float);
  for (int g = 0; g < a.groups; ++g)
    check(cudaMemset2DAsync(a.dw + g * a.dw_group, static_cast<size_t>(a.lddw) * sizeof(float), 0,
                            row, static_cast<size_t>(a.N), stream_of(stream)),
          "gemm_wgrad: cudaMemset2DAsync");
}

}  // namespace

void gemm_wgrad(Stream stream, const GemmWgradArgs& a) {
  check_arguments(a);
  const Leaves& leaves = a.leaves;
  const int64_t tokens = leaves.begin[leaves.count];
  if (tokens == leaves.begin[0]) return zero_gradient(stream, a);
  TileShape shape{};
  for (int l = 0; l < leaves.count; ++l) {
    const int64_t length = leaves.begin[l + 1] - leaves.begin[l];
    // An empty leaf is one block past the last token: TMA fills it with zeros, the chain gives +0.
    shape.leaf_blocks[l] = length > 0 ? static_cast<int>(length / tile::kBlock) : 1;
    shape.leaf_begin[l] = static_cast<int>(length > 0 ? leaves.begin[l] : tokens);
  }
  shape.out_f32 = true;
  const CUtensorMap dy = tensor_map("gemm_wgrad dy", a.dy, TmaType::bf16,
                                    {{a.N, 1, 64}, {tokens, a.lddy, 64}, {1, 8, 1}, {1, 8, 1}});
  const CUtensorMap x =
      tensor_map("gemm_wgrad x", a.x, TmaType::bf16,
                 {{a.gk, 1, 64}, {tokens, a.ldx, 64}, {1, 8, 1}, {a.groups, a.gk, 1}});
  const CUtensorMap dw =
      tensor_map("gemm_wgrad dw", a.dw, TmaType::f32,
                 {{a.gk, 1, store_columns(true)}, {a.N, a.lddw, 64}, {a.groups, a.dw_group, 1}});
  launch_tiles<GemmKind::wgrad>("gemm_wgrad", stream, a.N, a.gk, a.groups, leaves.count, dy, x, dw,
                                shape);
}

}  // namespace rlk::cuda
