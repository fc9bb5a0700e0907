#pragma once
// Rewards: what a response is worth. A Reward is used by one thread; score() is deterministic in
// its arguments but for a user's command.
//
// - deepscaler: 1 when the answer after the thinking part (last \boxed{}) equals the label, else 0
// - synthetic-hash: a fixed pseudo-random 0 or 1 of the response's tokens; needs neither text nor
//   label
// - command:PATH: the user's own verifier, see below

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rlk {

struct RewardRequest {
  int64_t prompt_row = 0;
  int32_t sample = 0;
  std::string prompt, response, label;  // text; the response without its stop token
  std::vector<int32_t> tokens;          // of the response
};

class Reward {
 public:
  virtual ~Reward() = default;
  // One value per request, in order. Throws Error when a verifier fails, dies or is late: never a
  // reward of 0.
  virtual std::vector<double> score(std::span<const RewardRequest> requests) = 0;
};

// Of a reward command. The program is started without a shell, `processes` times, and gets one JSON
// line per sample on its standard input: {"id", "prompt", "response", "label", "prompt_row",
// "sample"}. It answers each with one line
// {"id": THE SAME, "reward": NUMBER} on standard output; standard error is the run's. A line that
// is not that, an early end, or silence for longer than the deadline is an Error.
struct RewardCommandOptions {
  int processes = 4;
  double seconds_per_sample = 30;
};

// Names as above. InputError for an unknown name or a program that cannot be found.
std::unique_ptr<Reward> make_reward(const std::string& name, const RewardCommandOptions& = {});

// Whether rows need a label (false for synthetic-hash alone).
bool reward_needs_label(const std::string& name);

}  // namespace rlk
