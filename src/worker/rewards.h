#pragma once
// Rewards of a trajectory: decoded and judged on rank 0, shared with all.

#include "rank.h"
#include "rlk/run/records.h"

namespace rlk {

// Sets every sample's reward; the texts are returned on rank 0 alone.
std::vector<SampleText> reward_stage(Rank&, Trajectory&);

}  // namespace rlk
