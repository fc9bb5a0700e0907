#pragma once
// What score and generate have in common.

#include "rlk/worker/local.h"
#include "rlk/worker/local_rank.h"

namespace rlk {

// InputError where the model's vocabulary forbids it.
void check_sampling(const SamplingParams&, const ModelConfig&);

// A rank with the model's weights. InputError for a damaged checkpoint.
LocalRank open_model(const LocalModel&, const ModelConfig&, uint64_t shared_bytes);

}  // namespace rlk
