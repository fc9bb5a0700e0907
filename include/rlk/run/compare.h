#pragma once
// `rlk compare A B`: the first difference between two runs' trajectories. Tokens, rewards,
// advantages, log-probs, losses, gradient norms and every fingerprint are compared bit for bit;
// layout, timing and paths are not. Pure reading; InputError when a run is unreadable.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace rlk {

struct RunDifference {
  int64_t step = 0;
  std::optional<int64_t> prompt, sample, position;  // position in the sequence
  std::string field;  // "tokens", "train_logp", "grad_norm", "gradient of <tensor>"
  std::string a, b;   // both values, floats with their bits in hex
  std::string text() const;
};

struct RunComparison {
  std::optional<RunDifference> first;
  int64_t steps = 0, samples = 0, tokens = 0, fingerprints = 0;  // found equal
};

RunComparison compare_runs(const std::filesystem::path& run_a, const std::filesystem::path& run_b);

}  // namespace rlk
