#pragma once
// GRPO on the host: advantages, per-token loss and its derivative, metrics. Pure functions of a
// Trajectory, the same on every rank and backend; fp64 sums by (prompt, sample, position).

#include <cstdint>
#include <vector>

#include "rlk/data/trajectory.h"

namespace rlk {

struct GrpoOptions {
  double eps_clip = 0.2, kl_coef = 0;
  int kl_estimator = 3;  // k1, k2, k3 of Schulman, "Approximating KL divergence" (2020)
  bool token_mean = false, std_normalization = true;
};

// Group-normalised advantages: (r - mean) / (std + 1e-6), population std, over samples of the same
// prompt.
void set_advantages(std::vector<Sample>&, bool std_normalization);

// How much one response token of sample i counts in the loss: 1 / (samples * its length), or 1 /
// (all response tokens).
double token_weight(const std::vector<Sample>&, int first, int count, int i, const GrpoOptions&);

struct TokenLoss {
  double policy, kl, ratio;
  bool clipped;
  double derivative;  // d(policy + kl_coef*kl) / d(log-prob)
};
// Token t of the response, with the log-prob that the training forward computes now.
TokenLoss token_loss(const Sample&, int t, float logp, const GrpoOptions&);

// What one update reports.
struct LossSums {
  double policy = 0, kl = 0, clipped = 0, tokens = 0, max_derivative = 0;
};

}  // namespace rlk
