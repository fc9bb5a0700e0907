#pragma once
// What a manifest can be checked by: the digest that it carries of itself, and the keys that it
// repeats from plan.json, value by value. Pure.

#include <string>

#include "rlk/base/json.h"

namespace rlk {

// SHA-256 of the manifest without its "digest", as compact JSON, in hex.
std::string manifest_digest(Json manifest);

inline constexpr const char* kPlannedIdentity[] = {"run_id", "command", "profile"};
inline constexpr const char* kPlannedSections[] = {"backend",   "mode",     "modules", "steps",
                                                   "topology",  "sampling", "seeds",   "algorithm",
                                                   "execution", "memory"};

}  // namespace rlk
