#pragma once
// What `rlk bench decode` verifies before it believes a time.

#include <string>
#include <vector>

#include "rlk/rollout/engine.h"

namespace rlk::bench {

// Empty when tokens and log-probs are the same bits, else the first that differ.
std::string first_difference(const std::vector<GenerateResult>& got,
                             const std::vector<GenerateResult>& want);

}  // namespace rlk::bench
