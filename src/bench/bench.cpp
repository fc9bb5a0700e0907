#include "rlk/bench/bench.h"

#include "harness.h"
#include "rlk/base/error.h"
#include "rlk/build_info/build_info.h"

namespace rlk {

int bench_kernels(const BenchOptions& options) {
  if (!build_info().cuda)
    throw InputError("rlk bench", "this binary has no CUDA backend", "build with the cuda preset");
#if RLK_HAS_CUDA
  return bench::run(options);
#else
  (void)options;
  return kExitUsage;
#endif
}

}  // namespace rlk
