#pragma once
// Where a rank's weights come from.

#include <cstdint>
#include <filesystem>

#include "rlk/device/ops.h"
#include "rlk/model/weights.h"

namespace rlk {

// This rank's part of a checkpoint. InputError where the file is damaged.
void load_weights(Weights&, const Ops&, const std::filesystem::path& dir, const ModelConfig&);

// This rank's part of a synthetic model: what a checkpoint that `rlk prepare --synthetic` writes
// has.
void make_weights(Weights&, const Ops&, uint64_t seed);

}  // namespace rlk
