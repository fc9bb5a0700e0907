#include "rlk/data/reward.h"

#include "reward_command.h"
#include "rlk/base/error.h"
#include "rlk/base/philox.h"
#include "rlk/data/math_answer.h"

namespace rlk {
namespace {

constexpr const char* kDeepscaler = "deepscaler";
constexpr const char* kSyntheticHash = "synthetic-hash";
constexpr std::string_view kCommandPrefix = "command:";

class Deepscaler final : public Reward {
 public:
  std::vector<double> score(std::span<const RewardRequest> requests) override {
    std::vector<double> rewards;
    for (const RewardRequest& r : requests) {
      const auto answer = boxed_answer(r.response);
      rewards.push_back(answer && math_equal(*answer, r.label) ? 1 : 0);
    }
    return rewards;
  }
};

class SyntheticHash final : public Reward {
 public:
  std::vector<double> score(std::span<const RewardRequest> requests) override {
    std::vector<double> rewards;
    for (const RewardRequest& r : requests) {
      uint64_t h = mix64(r.tokens.size());
      for (const int32_t token : r.tokens) h = mix64(h ^ static_cast<uint32_t>(token));
      rewards.push_back(static_cast<double>(h & 1));
    }
    return rewards;
  }
};

}  // namespace

std::unique_ptr<Reward> make_reward(const std::string& name, const RewardCommandOptions& options) {
  if (name == kDeepscaler) return std::make_unique<Deepscaler>();
  if (name == kSyntheticHash) return std::make_unique<SyntheticHash>();
  if (name.starts_with(kCommandPrefix))
    return std::make_unique<RewardCommand>(name.substr(kCommandPrefix.size()), options);
  throw InputError("task.reward", name, "must be deepscaler, synthetic-hash or command:PATH");
}

bool reward_needs_label(const std::string& name) {
  return name != kSyntheticHash;
}

}  // namespace rlk
