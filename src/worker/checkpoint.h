#pragma once
// --save-interval: the trained weights as a Hugging Face checkpoint inside the run directory.

#include "rank.h"

namespace rlk {

// <run_dir>/checkpoints/version-NNNNNN, written by rank 0 from every rank's memory. Collective over
// all ranks.
void save_checkpoint(Rank&, uint64_t version);

}  // namespace rlk
