#pragma once
// sidecars/step-NNNNNN.safetensors <-> Trajectory (docs/formats.md). Private to src/run.

#include <filesystem>

#include "rlk/data/trajectory.h"

namespace rlk {

void write_sidecar_file(const std::filesystem::path&, const Trajectory&);  // throws Error
Trajectory read_sidecar_file(const std::filesystem::path&, int64_t step);  // throws InputError

}  // namespace rlk
