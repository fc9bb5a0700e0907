#pragma once
// The digest that a manifest carries of itself. Pure.

#include <string>

#include "rlk/base/json.h"

namespace rlk {

// SHA-256 of the manifest without its "digest", as compact JSON, in hex.
std::string manifest_digest(Json manifest);

}  // namespace rlk
