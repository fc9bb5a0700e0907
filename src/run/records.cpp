#include "rlk/run/records.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "rlk/base/error.h"

namespace rlk {
namespace {

void add_mismatches(const Sample& sample, StepMetrics* m, double* sum_abs) {
  for (size_t i = 0; i < sample.rollout_logp.size(); ++i) {
    const float a = sample.rollout_logp[i], b = sample.train_logp[i];
    const bool equal = std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    if (equal && std::isfinite(a)) continue;
    ++m->mismatch_count;
    const double difference = std::abs(static_cast<double>(a) - static_cast<double>(b));
    *sum_abs += difference;
    // A NaN must stay visible, and std::max would drop it.
    if (std::isnan(difference) || difference > m->mismatch_max_abs)
      m->mismatch_max_abs = difference;
  }
}

// Mean over the updates of one of their figures.
double mean_of(const std::vector<UpdateMetrics>& updates, double UpdateMetrics::*figure) {
  if (updates.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const UpdateMetrics& u : updates) sum += u.*figure;
  return sum / static_cast<double>(updates.size());
}

}  // namespace

StepMetrics summarise(const Trajectory& trajectory) {
  StepMetrics m;
  m.step = trajectory.step;
  m.weight_version = trajectory.weight_version;
  m.samples = static_cast<int64_t>(trajectory.samples.size());
  if (m.samples == 0) return m;
  const double n = static_cast<double>(m.samples);

  double reward_sum = 0, sum_abs = 0;
  int64_t truncated = 0;
  m.advantage_min = m.advantage_max = trajectory.samples.front().advantage;
  for (const Sample& s : trajectory.samples) {
    RLK_CHECK(s.rollout_logp.size() == s.train_logp.size(), s.rollout_logp.size(),
              s.train_logp.size());
    m.prompt_tokens += s.prompt_len;
    m.response_tokens += s.response_len();
    m.response_len_max = std::max<int64_t>(m.response_len_max, s.response_len());
    truncated += s.truncated;
    reward_sum += s.reward;
    m.advantage_min = std::min(m.advantage_min, s.advantage);
    m.advantage_max = std::max(m.advantage_max, s.advantage);
    add_mismatches(s, &m, &sum_abs);
  }
  m.reward_mean = reward_sum / n;
  double squares = 0;
  for (const Sample& s : trajectory.samples)
    squares += (s.reward - m.reward_mean) * (s.reward - m.reward_mean);
  m.reward_std = std::sqrt(squares / n);
  m.response_len_mean = static_cast<double>(m.response_tokens) / n;
  m.truncated_ratio = static_cast<double>(truncated) / n;
  m.mismatch_mean_abs =
      m.response_tokens == 0 ? 0 : sum_abs / static_cast<double>(m.response_tokens);
  return m;
}

Json to_json(const StepMetrics& m) {
  Json updates = Json::array();
  for (const UpdateMetrics& u : m.updates) {
    updates.push_back({{"loss", u.loss},
                       {"policy_loss", u.policy_loss},
                       {"kl", u.kl},
                       {"clip_fraction", u.clip_fraction},
                       {"grad_norm", u.grad_norm},
                       {"lr", u.lr}});
  }
  const StageSeconds& t = m.seconds;
  return {{"step", m.step},
          {"weight_version", m.weight_version},
          {"samples", m.samples},
          {"prompt_tokens", m.prompt_tokens},
          {"response_tokens", m.response_tokens},
          {"reward_mean", m.reward_mean},
          {"reward_std", m.reward_std},
          {"response_len_mean", m.response_len_mean},
          {"response_len_max", m.response_len_max},
          {"truncated_ratio", m.truncated_ratio},
          {"advantage_min", m.advantage_min},
          {"advantage_max", m.advantage_max},
          {"loss", mean_of(m.updates, &UpdateMetrics::loss)},
          {"policy_loss", mean_of(m.updates, &UpdateMetrics::policy_loss)},
          {"kl", mean_of(m.updates, &UpdateMetrics::kl)},
          {"grad_norm", mean_of(m.updates, &UpdateMetrics::grad_norm)},
          {"lr", mean_of(m.updates, &UpdateMetrics::lr)},
          {"updates", std::move(updates)},
          {"mismatch_count", m.mismatch_count},
          {"mismatch_max_abs", m.mismatch_max_abs},
          {"mismatch_mean_abs", m.mismatch_mean_abs},
          {"seconds",
           {{"rollout", t.rollout},
            {"sync", t.sync},
            {"score", t.score},
            {"train", t.train},
            {"optimizer", t.optimizer},
            {"audit", t.audit},
            {"step", t.step}}},
          {"tokens_per_second", static_cast<double>(m.response_tokens) / t.step}};
}

const char* run_status_name(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "running";
    case RunStatus::finished:
      return "finished";
    case RunStatus::failed:
      return "failed";
    case RunStatus::interrupted:
      return "interrupted";
  }
  return "";
}

}  // namespace rlk
