// embedding: one block copies one row from the vocabulary slice that owns the id.
// embedding_bwd: one block a distinct id; each thread owns four columns and walks the id's tokens
// in order.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/leaves.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) embedding_kernel(EmbeddingArgs a) {
  const int64_t t = blockIdx.x;
  const int64_t id = a.ids[t];
  const int64_t slice = id / a.slice_rows;
  const bf16* from = nullptr;
#pragma unroll
  for (int v = 0; v < kSlices; ++v) {
    if (v == slice) from = a.slice[v];
  }
  from += (id - slice * a.slice_rows) * a.D;
  for (int64_t d = threadIdx.x * 8; d < a.D; d += kThreads * 8)
    store_vec(a.y + t * a.D + d, load_vec<Bf16x8>(from + d));
}

template <int LeafCount>
__global__ void __launch_bounds__(kThreads) embedding_bwd_kernel(EmbeddingBwdArgs a) {
  const int64_t d = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 4;
  if (d >= a.D) return;
  int32_t next = a.row_begin[blockIdx.x];
  const int32_t end = a.row_begin[blockIdx.x + 1];
  float leaf[4][LeafCount];
#pragma unroll
  for (int l = 0; l < LeafCount; ++l) {
    float sum[4] = {0, 0, 0, 0};
    for (; next < end; ++next) {
      const int64_t token = a.tokens[next];
      if (token >= a.leaves.begin[l + 1]) break;
      const F32x4 x = load_vec<F32x4>(a.dx + token * a.D + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += x.x[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) leaf[i][l] = sum[i];
  }
  F32x4 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.x[i] = aligned_tree<LeafCount>(leaf[i]);
  store_vec(a.dw + (a.row[blockIdx.x] - a.first_row) * a.D + d, out);
}

}  // namespace

void embedding(Stream stream, const EmbeddingArgs& a) {
  if (a.T == 0) return;
  require(a.D % 8 == 0, "embedding", "D = " + std::to_string(a.D) + ", must be a multiple of 8");
  // Not a dependent launch: a step's first kernel starts when all before it is over, which is what
  // AttentionArgs::past_ready and GemmArgs::w_ready count on.
  embedding_kernel<<<blocks_for(a.T, 1), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("embedding");
}

void embedding_bwd(Stream stream, const EmbeddingBwdArgs& a) {
  if (a.rows == 0) return;
  require(a.D % 4 == 0, "embedding_bwd",
          "D = " + std::to_string(a.D) + ", must be a multiple of 4");
  const dim3 grid(blocks_for(a.rows, 1), blocks_for(a.D, kThreads * 4));
  for_leaf_count("embedding_bwd", a.leaves.count, [&]<int Count>() {
    embedding_bwd_kernel<Count><<<grid, kThreads, 0, stream_of(stream)>>>(a);
  });
  check_launch("embedding_bwd");
}

}  // namespace rlk::cuda
