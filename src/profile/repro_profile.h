#pragma once
// Profiles of the system that rlk replaces (`rlkernel.repro.profile.v1`): its paths and defaults
// are taken over, whatever speaks to its framework alone is listed and ignored. Pure.

#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/json.h"
#include "rlk/profile/profile.h"

namespace rlk {

inline constexpr char kReproSchema[] = "rlkernel.repro.profile.v1";

// Fills paths (relative to the profile's folder), defaults and `ignored` of a profile whose file is
// set. Defects are appended.
void read_repro_profile(const Json& root, Profile& profile, std::vector<Diagnostic>& defects);

}  // namespace rlk
