#include "rewards.h"

namespace rlk {
namespace {

double judge(const std::string& response, const std::string& label) {
  const size_t at = response.rfind("\\boxed{");
  if (at == std::string::npos) return 0;
  const size_t begin = at + 7, end = response.find('}', begin);
  return end != std::string::npos && response.substr(begin, end - begin) == label ? 1 : 0;
}

}  // namespace

std::vector<SampleText> reward_stage(Rank& rank, Trajectory& t) {
  std::vector<double> rewards(t.samples.size());
  std::vector<SampleText> texts;
  if (rank.leader()) {
    for (size_t i = 0; i < t.samples.size(); ++i) {
      const Sample& s = t.samples[i];
      const std::span<const int32_t> ids(s.tokens);
      SampleText text;
      text.prompt = s.prompt;
      text.sample = s.sample;
      text.prompt_text = rank.prompts.text(s.prompt);
      text.response_text = rank.tokenizer.decode(ids.subspan(s.prompt_len), true);
      text.label = rank.prompts.label(s.prompt);
      text.truncated = s.truncated;
      text.reward = rewards[i] = judge(text.response_text, text.label);
      texts.push_back(std::move(text));
    }
  }
  const Ops& ops = *rank.ops.strict;
  DeviceBuffer memory(ops);
  const size_t bytes = rewards.size() * sizeof(double);
  void* device = memory.ensure(static_cast<int64_t>(bytes));
  ops.copy(nullptr, device, rewards.data(), bytes);
  rank.everyone->broadcast(nullptr, device, bytes, 0);
  ops.copy(nullptr, rewards.data(), device, bytes);
  ops.synchronize(nullptr);
  for (size_t i = 0; i < rewards.size(); ++i) t.samples[i].reward = rewards[i];
  return texts;
}

}  // namespace rlk
