#include "option_values.h"

#include <algorithm>

#include "rlk/base/text.h"
#include "rlk/profile/option_table.h"

namespace rlk {

OptionValues::OptionValues(const PlanInputs& inputs, std::vector<Diagnostic>& defects)
    : working_folder_(inputs.working_folder), defects_(defects) {
  const auto take_profile = [&](const std::vector<ProfileValue>& section, Source source) {
    for (const ProfileValue& v : section)
      values_[v.option] = {v.text, v.where + " " + printable(v.text), source};
  };
  if (inputs.profile) {
    take_profile(inputs.profile->defaults, Source::profile_defaults);
    if (inputs.command == Command::verify)
      take_profile(inputs.profile->verify, Source::profile_verify);
  }
  for (const OptionSpec& spec : option_table())
    for (const std::string& variable : environment_names(spec)) {
      const auto it = inputs.environment.find(variable);
      if (it == inputs.environment.end() || it->second.empty()) continue;
      values_[spec.name] = {it->second, variable + "=" + printable(it->second),
                            Source::environment};
      break;
    }
  for (const GivenOption& given : inputs.command_line) {
    const OptionSpec* spec = find_option(given.name);
    const std::string text =
        spec != nullptr && spec->value.empty() ? "" : " " + printable(given.text);
    values_[given.name] = {given.text, "--" + given.name + text, Source::command_line};
  }
}

const OptionValue* OptionValues::find(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

Source OptionValues::source(const std::string& name) const {
  const OptionValue* value = find(name);
  return value == nullptr ? Source::built_in : value->source;
}

std::string OptionValues::where(const std::string& name) const {
  const OptionValue* value = find(name);
  return value == nullptr ? "--" + name : value->where;
}

void OptionValues::fail(const std::string& name, const std::string& fix) const {
  defects_.push_back({where(name), fix, ""});
}

int64_t OptionValues::integer(const std::string& name, int64_t min, int64_t max,
                              int64_t fallback) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return fallback;
  const auto parsed = parse_integer(value->text);
  if (parsed && *parsed >= min && *parsed <= max) return *parsed;
  fail(name, "must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
  return fallback;
}

uint64_t OptionValues::seed(const std::string& name, uint64_t fallback) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return fallback;
  if (const auto parsed = parse_unsigned(value->text)) return *parsed;
  fail(name, "must be an integer from 0 to 18446744073709551615");
  return fallback;
}

double OptionValues::number(const std::string& name, double min, double max, double fallback,
                            bool open_min) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return fallback;
  const auto parsed = parse_number(value->text);
  if (parsed && *parsed >= min && *parsed <= max && !(open_min && *parsed == min)) return *parsed;
  fail(name, "must be a finite number " + std::string(open_min ? "above " : "from ") +
                 format_number(min) + (open_min ? ", at most " : " to ") + format_number(max));
  return fallback;
}

bool OptionValues::flag(const std::string& name) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return false;
  if (value->text == "true" || value->text == "1") return true;
  if (value->text != "false" && value->text != "0") fail(name, "must be true or false");
  return false;
}

size_t OptionValues::choice(const std::string& name, const std::vector<std::string>& choices,
                            size_t fallback) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return fallback;
  const auto it = std::find(choices.begin(), choices.end(), value->text);
  if (it != choices.end()) return static_cast<size_t>(it - choices.begin());
  fail(name, "must be " + join_choices(choices));
  return fallback;
}

int OptionValues::power_of_two(const std::string& name, int max, int fallback) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return fallback;
  const auto parsed = parse_integer(value->text);
  std::vector<std::string> right;
  for (int n = 1; n <= max; n *= 2) {
    if (parsed == n) return n;
    right.push_back(std::to_string(n));
  }
  fail(name, "must be " + join_choices(right) + " on this profile");
  return fallback;
}

std::optional<std::filesystem::path> OptionValues::path(const std::string& name) const {
  const OptionValue* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->text.empty() || value->text.find('\0') != std::string::npos) {
    fail(name, "must be a path");
    return std::nullopt;
  }
  return (working_folder_ / value->text).lexically_normal();
}

}  // namespace rlk
