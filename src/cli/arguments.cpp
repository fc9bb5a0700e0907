#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <utility>

#include "rlk/base/json_reader.h"
#include "rlk/base/text.h"

namespace rlk {
namespace {

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Reads `text` into `value`, or returns what it must be. rlk's own reading, not CLI11's: that one
// takes 010 for 8, and stops at the first value that it cannot read.
template <class T>
std::string read_value(const std::string& text, T& value) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
  } else if constexpr (std::is_integral_v<T>) {
    const auto number = parse_integer(text);
    if (!number || !std::in_range<T>(*number))
      return fmt::format("must be an integer from {} to {}", Limits::min(), Limits::max());
    value = static_cast<T>(*number);
  } else if constexpr (std::is_floating_point_v<T>) {
    const auto number = parse_number(text);
    if (!number || std::abs(*number) > Limits::max()) return "must be a number";
    value = static_cast<T>(*number);
  } else {
    T list;
    bool read = !text.empty();
    for (const auto part : std::views::split(text, ',')) {
      const auto number = parse_integer({part.begin(), part.end()});
      read = read && number;
      list.push_back(number.value_or(0));
    }
    if (!read) return "must be integers with commas between them";
    value = std::move(list);
  }
  return "";
}

// What CLI11 could not place. A bare word behind an unknown option is taken for that option's
// value; behind "--" every word is bare.
std::vector<Diagnostic> unknown_arguments(const CLI::App& app) {
  std::vector<Diagnostic> defects;
  const std::vector<std::string> known = long_names(app);
  bool after_unknown = false, only_bare = false;
  for (const std::string& word : app.remaining()) {
    if (word == "--" && !std::exchange(only_bare, true)) continue;
    const bool option = !only_bare && word.size() > 1 && word.front() == '-';
    if (option) {
      const std::string near = nearest_name(word.substr(0, word.find('=')), known);
      defects.push_back(
          {printable(word), "unknown option", near.empty() ? "" : "the nearest one is " + near});
    } else if (!after_unknown) {
      defects.push_back({"\"" + printable(word) + "\"", "unexpected argument", ""});
    }
    after_unknown = option && word.find('=') == std::string::npos;
  }
  return defects;
}

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& known : option->get_lnames())
      if (name == "--" + known) return option;
  return nullptr;
}

// Takes out what CLI11 would stop at (an option without its value) or would give a meaning of its
// own (a flag with one: --dry-run=-1 was no dry run), and returns it.
std::vector<Diagnostic> take_out_wrong_arity(const CLI::App& app, Arguments& args) {
  std::vector<Diagnostic> defects;
  Arguments kept;
  auto word = args.begin();
  for (; word != args.end() && *word != "--"; ++word) {
    const size_t equals = word->find('=');
    const std::string name = word->substr(0, equals);
    const CLI::Option* option = find_option(app, name);
    const bool valued = option != nullptr && option->get_items_expected_min() > 0;
    const bool alone = equals == std::string::npos;
    if (valued && (alone ? word + 1 == args.end() : equals + 1 == word->size())) {
      defects.push_back({name, "needs a value", ""});
    } else if (option != nullptr && !valued && !alone) {
      defects.push_back({printable(*word), "takes no value", ""});
    } else {
      kept.push_back(*word);
      if (valued && alone) kept.push_back(*++word);
    }
  }
  kept.insert(kept.end(), word, args.end());
  args = std::move(kept);
  return defects;
}

}  // namespace

CommandLine::CommandLine(const std::string& command, const std::string& title)
    : app_(std::make_unique<CLI::App>(title, command)) {
  app_->allow_extras();
  app_->set_help_flag("-h,--help", "this text");
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app_->get_formatter()->column_width(44);
}

CommandLine::~CommandLine() = default;

template <class T>
void CommandLine::option(const std::string& names, T& value, const std::string& help,
                         const std::string& type, const std::string& group) {
  const auto given = [this, &value,
                      name = names.substr(0, names.find(','))](const std::string& text) {
    if (const std::string wrong = read_value(text, value); !wrong.empty())
      defects_.push_back({name + " " + printable(text), wrong, ""});
  };
  on_option(names, given, help, type, group);
}

template void CommandLine::option(const std::string&, std::string&, const std::string&,
                                  const std::string&, const std::string&);
template void CommandLine::option(const std::string&, float&, const std::string&,
                                  const std::string&, const std::string&);
template void CommandLine::option(const std::string&, double&, const std::string&,
                                  const std::string&, const std::string&);
template void CommandLine::option(const std::string&, int32_t&, const std::string&,
                                  const std::string&, const std::string&);
template void CommandLine::option(const std::string&, int64_t&, const std::string&,
                                  const std::string&, const std::string&);
template void CommandLine::option(const std::string&, std::vector<int64_t>&, const std::string&,
                                  const std::string&, const std::string&);

void CommandLine::flag(const std::string& names, bool& value, const std::string& help,
                       const std::string& group) {
  app_->add_flag(names, value, help)->group(group);
}

void CommandLine::on_option(const std::string& names, std::function<void(const std::string&)> given,
                            const std::string& help, const std::string& type,
                            const std::string& group) {
  app_->add_option_function<std::string>(names, given, help)->type_name(type)->group(group);
}

void CommandLine::on_flag(const std::string& names, std::function<void()> given,
                          const std::string& help, const std::string& group) {
  app_->add_flag_callback(names, given, help)->group(group);
}

std::vector<Diagnostic> CommandLine::parse(Arguments args, bool& helped) {
  helped = false;
  defects_ = take_out_wrong_arity(*app_, args);
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its end
  try {
    app_->parse(args);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_->help());
    helped = true;
    return {};
  } catch (const CLI::ParseError& error) {
    defects_.push_back({"command line", printable(error.what()), ""});
    return std::move(defects_);
  }
  for (Diagnostic& d : unknown_arguments(*app_)) defects_.push_back(std::move(d));
  return std::move(defects_);
}

}  // namespace rlk
