#pragma once
// The winning text of every option (command line > environment > profile > built-in) and its typed
// readings. A wrong value is recorded as a diagnostic naming its source, and the reading returns
// the fallback.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rlk/plan/make_plan.h"

namespace rlk {

enum class Source { built_in, profile_defaults, profile_verify, environment, command_line };

struct OptionValue {
  std::string text;
  std::string where;  // "--tp 3", "RLK_TP=3", "profile.json: defaults.tp 3"
  Source source = Source::built_in;
};

class OptionValues {
 public:
  explicit OptionValues(const PlanInputs&, std::vector<Diagnostic>& defects);

  const OptionValue* find(const std::string& name) const;  // null: nobody gave it
  Source source(const std::string& name) const;
  // "--tp 3" as the user gave it, or "--tp" where nobody did.
  std::string where(const std::string& name) const;
  void fail(const std::string& name, const std::string& fix) const;

  int64_t integer(const std::string& name, int64_t min, int64_t max, int64_t fallback) const;
  uint64_t seed(const std::string& name, uint64_t fallback) const;
  // min and max belong to the range unless `open_min`.
  double number(const std::string& name, double min, double max, double fallback,
                bool open_min = false) const;
  bool flag(const std::string& name) const;
  // Index of the value among `choices`.
  size_t choice(const std::string& name, const std::vector<std::string>& choices,
                size_t fallback) const;
  int power_of_two(const std::string& name, int max, int fallback) const;
  // Absolute; relative ones start at the working folder. Nothing where nobody gave it.
  std::optional<std::filesystem::path> path(const std::string& name) const;

 private:
  std::map<std::string, OptionValue> values_;
  std::filesystem::path working_folder_;
  std::vector<Diagnostic>& defects_;
};

}  // namespace rlk
