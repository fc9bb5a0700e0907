#pragma once
// `rlk bench decode`: the rollout engine's decode step on a synthetic model, one rank. Tokens are
// verified before a time is believed. One thread; owns the device while it runs.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/plan/plan.h"

namespace rlk {

struct DecodeBenchOptions {
  std::string shape = "qwen3-8b";  // SyntheticModel::shape
  Backend backend = Backend::cuda;
  std::vector<int64_t> batches = {1, 8, 64};
  int64_t context = 1024;  // in the middle of the timed steps
  int64_t steps = 64;      // timed ones, a multiple of look_ahead
  int32_t look_ahead = 8;
  float temperature = 1, top_p = 1;
  int32_t top_k = -1;
  bool profile = false;       // also the step with one op left out, op by op
  std::filesystem::path csv;  // rows are written here; none when empty
};

// Prints the table; returns kExitOk, or kExitFailed when tokens were wrong. InputError for options
// that mean nothing, after `defects`, what the caller knows already.
int bench_decode(const DecodeBenchOptions&, std::vector<Diagnostic> defects);

}  // namespace rlk
