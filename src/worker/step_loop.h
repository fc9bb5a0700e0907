#pragma once
// The steps of a run on one rank: rollout, reward, score, update, audit, record.

#include <functional>

#include "rank.h"
#include "rlk/data/trajectory.h"
#include "rlk/launch/status.h"

namespace rlk {

// Called on every rank between two stages of a step. A run has none; the mutation tests damage the
// engines here, each at the place where the defect that it stands for would arise.
struct StepHooks {
  std::function<void(Rank&, int64_t step)> before_rollout =
      nullptr;  // weights are in place, not yet audited
  std::function<void(Rank&, Trajectory&)> sampled =
      nullptr;  // gathered, not yet checked or rewarded
  std::function<void(Rank&, Trajectory&)> recorded = nullptr;  // about to be written
};

void run_steps(Rank&, StatusWriter&, const StepHooks& = {});

}  // namespace rlk
