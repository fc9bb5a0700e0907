#pragma once
// The options of verify, run and plan: one row each, for the command line, the environment, the
// profile's `defaults` and `verify` sections and the help text alike. What a value means and which
// values are right: plan/resolve.h.

#include <string>
#include <string_view>
#include <vector>

namespace rlk {

struct OptionSpec {
  std::string name;   // long name without dashes: "rollout-tp"
  std::string alias;  // a second accepted name, or empty
  std::string value;  // "N", "FILE", "on|off"; empty for a flag
  std::string help;   // one line, with the default
  std::string group;  // heading in the help text
  bool in_profile;    // may stand in `defaults` and `verify`
};

const std::vector<OptionSpec>& option_table();

// The row with this name or alias; null when there is none.
const OptionSpec* find_option(std::string_view name);

// Environment variables that set the option, the first one that is set and not empty wins:
// RLK_ROLLOUT_TP; for paths also the known system's RLK_REPRO_MODEL_ROOT.
std::vector<std::string> environment_names(const OptionSpec&);

}  // namespace rlk
