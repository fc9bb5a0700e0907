// cast: bf16 y = round(f32 x); widen: the way back. Eight elements a thread.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) cast_kernel(const float* x, bf16* y, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (i + 8 <= n) {
    const F32x4 a = load_vec<F32x4>(x + i), b = load_vec<F32x4>(x + i + 4);
    const float all[8] = {a.x[0], a.x[1], a.x[2], a.x[3], b.x[0], b.x[1], b.x[2], b.x[3]};
    store_vec(y + i, pack(all));
    return;
  }
  for (int64_t j = i; j < n; ++j) y[j].bits = static_cast<uint16_t>(round_pair(x[j], 0.0f));
}

__global__ void __launch_bounds__(kThreads) widen_kernel(WidenArgs a) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  const bf16* x = a.x + a.pieces.at(i);
  for (int64_t j = i; j < min(i + 8, a.n); ++j) a.y[j] = to_float(x[j - i]);
}

}  // namespace

void widen(Stream stream, const WidenArgs& a) {
  if (a.n == 0) return;
  widen_kernel<<<blocks_for(a.n, kThreads * 8), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("widen");
}

void cast(Stream stream, const CastArgs& a) {
  if (a.n == 0) return;
  require(aligned(a.x) && aligned(a.y), "cast", "x and y must be 16-byte aligned");
  cast_kernel<<<blocks_for(a.n, kThreads * 8), kThreads, 0, stream_of(stream)>>>(a.x, a.y, a.n);
  check_launch("cast");
}

}  // namespace rlk::cuda
