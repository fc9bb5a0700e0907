#pragma once
// `rlk bench`: kernels beside the device's copy ceiling and, where a file of library timings is
// given, the library. Every case verifies its output before it is timed. One thread; owns the
// device while it runs.

#include <filesystem>
#include <string>

namespace rlk {

struct BenchOptions {
  std::string filter;             // only cases whose "op shape" contains it
  std::filesystem::path csv;      // rows are written here; none when empty
  std::filesystem::path library;  // rows of tests/bench/library.py: op,shape,us
  int device = 0;
};

// Prints the table; returns kExitOk, or kExitFailed when an output was wrong. InputError in a build
// without CUDA.
int bench_kernels(const BenchOptions& options);

}  // namespace rlk
