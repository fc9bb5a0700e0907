#pragma once
// Reads what a run is about to be fed, before anything starts, so that a bad file is an error of
// the input and not of a rank: tokenizer, prompts, checkpoints.

#include <vector>

#include "rlk/base/error.h"
#include "rlk/plan/plan.h"

namespace rlk {

// Throws InputError with every defect of every file. `profile` is where the task was read.
void check_inputs(const Plan&, const std::filesystem::path& profile);

}  // namespace rlk
