// gpu_hog SHARE: takes that share of what is free on GPU 0 and prints "holding". On SIGUSR1 it
// takes all the rest, again and again until it is killed, so that what others free is gone as well.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "rlk/base/error.h"
#include "rlk/device/gpus.h"
#include "rlk/device/ops.h"

namespace {

volatile sig_atomic_t all = 0;

void take(const rlk::Ops& ops, double share) {
  constexpr uint64_t kLeast = uint64_t{16} << 20;
  for (auto bytes = static_cast<uint64_t>(share * rlk::gpu_host().gpus.at(0).free_bytes);
       bytes >= kLeast; bytes /= 2) {
    try {
      ops.alloc(bytes);
      return;
    } catch (const rlk::Error&) {  // less, then
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGUSR1, [](int) { all = 1; });
  const rlk::Ops& ops = rlk::cuda_ops(0);
  take(ops, argc > 1 ? std::atof(argv[1]) : 0.5);
  std::puts("holding");
  std::fflush(stdout);
  for (;; usleep(2'000))
    if (all) take(ops, 1);
}
