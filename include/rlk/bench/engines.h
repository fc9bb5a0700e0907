#pragma once
// `rlk bench score|train|step`: the engines themselves on a synthetic model, one rank. One thread;
// owns the device while it runs.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/plan/plan.h"

namespace rlk {

struct EngineBenchOptions {
  std::string what;                // "score", "train" or "step"
  std::string shape = "qwen3-8b";  // SyntheticModel::shape
  Backend backend = Backend::cuda;
  int64_t seed = 0;
  int64_t sequences = 8;
  int64_t prompt = 1, response = 511;  // tokens a sequence
  int64_t head_rows = 8192;            // rows of logits at once
  double activation_gib = 1e6;         // for activations that are kept; the others are recomputed
  int repeat = 5;
  bool by_op = false;  // also the seconds of each op, each waited for
};

// Prints times, tokens a second and memory; returns kExitOk. InputError for options that mean
// nothing, after `defects`, what the caller knows already.
int bench_engines(const EngineBenchOptions&, std::vector<Diagnostic> defects);

}  // namespace rlk
