#include "rlk/bench/bench.h"

#include "rlk/base/error.h"
#ifdef RLK_CUDA
#include "harness.h"
#endif

namespace rlk {

int bench_kernels([[maybe_unused]] const BenchOptions& options) {
#ifdef RLK_CUDA
  return bench::run(options);
#else
  throw InputError("rlk bench", "this binary has no CUDA backend", "build with the cuda preset");
#endif
}

}  // namespace rlk
