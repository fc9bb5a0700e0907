#include "rewards.h"

namespace rlk {

std::vector<SampleText> reward_stage(Rank& rank, Trajectory& t) {
  std::vector<double> rewards(t.samples.size());
  std::vector<SampleText> texts;
  if (rank.leader()) {
    std::vector<RewardRequest> requests;
    for (const Sample& s : t.samples) {
      const std::span<const int32_t> response = std::span(s.tokens).subspan(s.prompt_len);
      SampleText text;
      text.prompt = s.prompt;
      text.sample = s.sample;
      text.prompt_text = rank.prompts.text(s.prompt);
      if (rank.tokenizer) text.response_text = rank.tokenizer->decode(response, true);
      text.label = rank.prompts.label(s.prompt);
      text.truncated = s.truncated;
      requests.push_back({s.prompt,
                          s.sample,
                          text.prompt_text,
                          text.response_text,
                          text.label,
                          {response.begin(), response.end()}});
      texts.push_back(std::move(text));
    }
    rewards = rank.reward->score(requests);
    for (size_t i = 0; i < texts.size(); ++i) texts[i].reward = rewards[i];
  }
  rank.everyone->broadcast(nullptr, rewards.data(), rewards.size() * sizeof(double), 0);
  for (size_t i = 0; i < rewards.size(); ++i) t.samples[i].reward = rewards[i];
  return texts;
}

}  // namespace rlk
