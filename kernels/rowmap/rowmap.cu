// gather_rows, scatter_rows: one warp a row, words of 16 bytes where row length and pointers allow,
// else of 4.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Word* x, Word* y, const int32_t* index, int64_t rows, int64_t words) {
  grid_launch_dependents();
  grid_dependency_wait();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t from = index[row];
#pragma unroll 4
  for (int64_t j = threadIdx.x % 32; j < words; j += 32)
    y[row * words + j] = from < 0 ? Word{} : x[from * words + j];
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const Word* x, Word* y, const int32_t* index, int64_t rows, int64_t words) {
  grid_launch_dependents();
  grid_dependency_wait();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t to = index[row];
  if (to < 0) return;
#pragma unroll 4
  for (int64_t j = threadIdx.x % 32; j < words; j += 32) y[to * words + j] = x[row * words + j];
}

template <class Word, class Kernel>
void launch_rows(const char* op, Stream stream, const RowMapArgs& a, Kernel kernel) {
  launch_dependent(op, stream, blocks_for(a.rows, kThreads / 32), kThreads, kernel,
                   static_cast<const Word*>(a.x), static_cast<Word*>(a.y), a.index, a.rows,
                   a.row_bytes / static_cast<int64_t>(sizeof(Word)));
}

bool wide(const char* op, const RowMapArgs& a) {
  require(a.row_bytes % 4 == 0, op,
          "rows of " + std::to_string(a.row_bytes) + " bytes, must be a multiple of 4");
  return a.row_bytes % 16 == 0 && aligned(a.x) && aligned(a.y);
}

}  // namespace

void gather_rows(Stream stream, const RowMapArgs& a) {
  if (a.rows == 0 || a.row_bytes == 0) return;
  if (wide("gather_rows", a))
    launch_rows<uint4>("gather_rows", stream, a, gather_kernel<uint4>);
  else
    launch_rows<uint32_t>("gather_rows", stream, a, gather_kernel<uint32_t>);
}

void scatter_rows(Stream stream, const RowMapArgs& a) {
  if (a.rows == 0 || a.row_bytes == 0) return;
  if (wide("scatter_rows", a))
    launch_rows<uint4>("scatter_rows", stream, a, scatter_kernel<uint4>);
  else
    launch_rows<uint32_t>("scatter_rows", stream, a, scatter_kernel<uint32_t>);
}

}  // namespace rlk::cuda
