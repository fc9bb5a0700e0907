#include "rlk/train/grpo.h"

#include <algorithm>
#include <cmath>

#include "rlk/base/math.h"

namespace rlk {

void set_advantages(std::vector<Sample>& samples, bool std_normalization) {
  for (size_t begin = 0; begin < samples.size();) {
    size_t end = begin;
    double sum = 0;
    for (; end < samples.size() && samples[end].prompt == samples[begin].prompt; ++end)
      sum += samples[end].reward;
    const double mean = sum / static_cast<double>(end - begin);
    double squares = 0;
    for (size_t i = begin; i < end; ++i)
      squares += (samples[i].reward - mean) * (samples[i].reward - mean);
    const double std = std::sqrt(squares / static_cast<double>(end - begin));
    for (size_t i = begin; i < end; ++i)
      samples[i].advantage = (samples[i].reward - mean) / (std_normalization ? std + 1e-6 : 1.0);
    begin = end;
  }
}

double token_weight(const std::vector<Sample>& samples, int first, int count, int i,
                    const GrpoOptions& options) {
  if (!options.token_mean) return 1.0 / (static_cast<double>(count) * samples[i].response_len());
  double tokens = 0;
  for (int s = first; s < first + count; ++s) tokens += samples[s].response_len();
  return 1.0 / tokens;
}

TokenLoss token_loss(const Sample& sample, int t, float logp, const GrpoOptions& options) {
  const double a = sample.advantage;
  const double ratio =
      strict_exp(static_cast<double>(logp) - static_cast<double>(sample.rollout_logp[t]));
  const double clipped = std::clamp(ratio, 1.0 - options.eps_clip, 1.0 + options.eps_clip);
  TokenLoss loss{};
  loss.ratio = ratio;
  loss.clipped = clipped * a < ratio * a;
  loss.policy = -std::min(ratio * a, clipped * a);
  loss.derivative = loss.clipped ? 0.0 : -ratio * a;
  if (options.kl_coef == 0) return loss;
  const double d = static_cast<double>(logp) - static_cast<double>(sample.ref_logp[t]);
  double slope = 1;
  switch (options.kl_estimator) {
    case 1:
      loss.kl = d;
      break;
    case 2:
      loss.kl = 0.5 * d * d;
      slope = d;
      break;
    default: {
      const double r = strict_exp(-d);
      loss.kl = r - 1 + d;
      slope = 1 - r;
    }
  }
  loss.derivative += options.kl_coef * slope;
  return loss;
}

}  // namespace rlk
