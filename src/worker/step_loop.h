#pragma once
// The steps of a run on one rank: rollout, reward, score, update, audit, record.

#include "rank.h"
#include "rlk/launch/status.h"

namespace rlk {

void run_steps(Rank&, StatusWriter&);

}  // namespace rlk
