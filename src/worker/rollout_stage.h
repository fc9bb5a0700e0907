#pragma once
// The rollout stage of a step: which samples, which engine, and one Trajectory on every rank.

#include "rank.h"
#include "rlk/data/trajectory.h"

namespace rlk {

// Generates samples_per_prompt samples of every given dataset row and shares them. Collective over
// all ranks.
Trajectory rollout_stage(Rank&, int64_t step, uint64_t version, const std::vector<int64_t>& rows);

}  // namespace rlk
