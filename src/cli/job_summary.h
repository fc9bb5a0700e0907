#pragma once
// How a job ended, as one summary for a person or as JSON.

#include <string>

#include "rlk/gate/gates.h"
#include "rlk/launch/launch.h"
#include "rlk/plan/plan.h"

namespace rlk {

struct JobOutcome {
  const Plan& plan;
  const LaunchResult& launched;
  const Validation& validation;

  bool passed() const { return launched.ok() && validation.passed(); }
  int exit_code() const;
};

std::string outcome_text(const JobOutcome&);
std::string outcome_json(const JobOutcome&);

}  // namespace rlk
