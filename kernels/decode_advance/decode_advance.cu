// decode_advance: a thread a row. Rows are independent, so nothing is ordered between them.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 64;

__device__ inline bool ends(const DecodeAdvanceArgs& a, int32_t token) {
  if (token < 0 || token >= a.vocab) return true;
  for (int i = 0; i < a.n_stop; ++i)
    if (a.stop[i] == token) return true;
  return false;
}

__global__ void __launch_bounds__(kThreads) decode_advance_kernel(DecodeAdvanceArgs a) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= a.T || a.seq[r] < 0) return;
  const int32_t token = a.token[r], n = a.count[r];
  a.drawn[r * a.drawn_stride + n] = {token, a.logp[r]};
  a.count[r] = n + 1;
  if (n + 1 == a.limit[r] || ends(a, token)) {
    a.seq[r] = -1;
    a.segments[r].len = 0;
    return;
  }
  a.ids[r] = token;
  ++a.position[r];
  ++a.segments[r].position;
  ++a.keys[r].position;
}

}  // namespace

void decode_advance(Stream stream, const DecodeAdvanceArgs& a) {
  if (a.T == 0) return;
  decode_advance_kernel<<<blocks_for(a.T, kThreads), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("decode_advance");
}

}  // namespace rlk::cuda
