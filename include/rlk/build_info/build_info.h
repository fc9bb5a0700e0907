#pragma once
// What this binary was built from: recorded in every manifest and printed by `rlk --version`.
// Constant after start.

#include <string>

namespace rlk {

struct BuildInfo {
  std::string version;   // of the project
  std::string revision;  // git commit, "unknown" outside a checkout
  bool dirty = false;    // the checkout had changes that the revision does not hold
  std::string compiler, type, flags;
  bool cuda = false;  // the CUDA backend is in
};

const BuildInfo& build_info();

}  // namespace rlk
