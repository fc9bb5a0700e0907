// bench_kernels [FILTER [CSV [LIBRARY]]]: `rlk bench` alone, for machines that get one small
// program.

#include <cstdio>
#include <exception>

#include "rlk/bench/bench.h"

int main(int argc, char** argv) try {
  rlk::BenchOptions options;
  if (argc > 1) options.filter = argv[1];
  if (argc > 2) options.csv = argv[2];
  if (argc > 3) options.library = argv[3];
  return rlk::bench_kernels(options);
} catch (const std::exception& e) {
  std::fprintf(stderr, "bench_kernels: %s\n", e.what());
  return 1;
}
