// gpu_hog SHARE: takes that share of what is free on GPU 0, again and again until it is killed, so
// that what others free is gone as well. Prints "holding" once it has something.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "rlk/base/error.h"
#include "rlk/device/gpus.h"
#include "rlk/device/ops.h"

int main(int argc, char** argv) {
  const double share = argc > 1 ? std::atof(argv[1]) : 0.5;
  const rlk::Ops& ops = rlk::cuda_ops(0);
  constexpr uint64_t kLeast = uint64_t{64} << 20;
  for (bool said = false;; usleep(share < 1 ? 1'000'000 : 5'000)) {
    if (said && share < 1) continue;
    for (auto bytes = static_cast<uint64_t>(share * rlk::gpu_host().gpus.at(0).free_bytes);
         bytes >= kLeast; bytes /= 2) {
      try {
        ops.alloc(bytes);
        break;
      } catch (const rlk::Error&) {  // less, then
      }
    }
    if (!said) std::puts("holding"), std::fflush(stdout);
    said = true;
  }
}
