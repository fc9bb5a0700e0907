#pragma once
// What one step produces: every sample with its tokens, log-probs and reward. Plain values; rank 0
// of each engine fills its samples, then all ranks hold the same Trajectory, ordered by (prompt,
// sample).

#include <cstdint>
#include <string>
#include <vector>

namespace rlk {

struct Sample {
  int64_t prompt = 0;  // dataset row
  int32_t sample = 0;
  int32_t prompt_len = 0;
  std::vector<int32_t> tokens;      // prompt + response; the stop token, when drawn, is the last
  std::vector<float> rollout_logp;  // [response] of the drawn tokens, from the rollout engine
  std::vector<float> train_logp;    // [response] from the training engine's own forward
  std::vector<float> ref_logp;      // [response] of the reference model; empty without KL
  bool truncated = false;           // ended by the length limit, not by a stop token
  double reward = 0, advantage = 0;
  int32_t response_len() const { return static_cast<int32_t>(tokens.size()) - prompt_len; }
};

struct Trajectory {
  int64_t step = 0;
  uint64_t weight_version = 0;
  std::vector<Sample> samples;  // ordered by (prompt, sample)
};

}  // namespace rlk
