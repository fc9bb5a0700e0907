#pragma once
// Naive fp64 statements of supports, log-probs and sampling over one row of real logits. Host
// memory.

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "rlk/base/philox.h"

namespace rlk::ref {

// The smallest value of the support: top-k first (ties kept), then top-p over what is left (ties
// kept). `margin`: how far the deciding mass was from top_p of the total, relative; a figure near
// zero is a tie that fp64 and fp32 may break apart.
inline double support_floor(const std::vector<double>& x, double inv_temp, double top_p, int top_k,
                            double* margin) {
  std::map<double, int, std::greater<>> count;
  for (const double v : x) ++count[v];
  double lowest = -INFINITY;
  if (top_k > 0 && top_k < static_cast<int>(x.size())) {
    int seen = 0;
    for (const auto& [v, n] : count) {
      lowest = v;
      if ((seen += n) >= top_k) break;
    }
  }
  *margin = 1;
  if (top_p >= 1) return lowest;
  const double max = count.begin()->first;
  double total = 0, sum = 0;
  for (const auto& [v, n] : count)
    if (v >= lowest) total += n * std::exp((v - max) * inv_temp);
  for (const auto& [v, n] : count) {
    if (v < lowest) break;
    sum += n * std::exp((v - max) * inv_temp);
    *margin = std::min(*margin, std::abs(sum / total - top_p));
    if (sum >= top_p * total) return v;
  }
  return lowest;
}

// log of the probability of x[target] over the values >= floor; and their lse.
inline double log_prob(const std::vector<double>& x, double inv_temp, double floor, size_t target,
                       double* lse) {
  double max = -INFINITY, sum = 0;
  for (const double v : x)
    if (v >= floor) max = std::max(max, v * inv_temp);
  for (const double v : x)
    if (v >= floor) sum += std::exp(v * inv_temp - max);
  *lse = max + std::log(sum);
  return x[target] >= floor ? x[target] * inv_temp - *lse : -INFINITY;
}

inline double gumbel(const SampleKey& key, uint32_t token) {
  const double u = (sample_block(key, token / 4).word[token % 4] + 0.5) * 0x1p-32;
  return -std::log(-std::log(u));
}

}  // namespace rlk::ref
