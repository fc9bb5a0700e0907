#include "arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

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

// What CLI11 could not place. A bare word behind an unknown option is taken for that option's
// value.
std::vector<Diagnostic> unknown_arguments(const CLI::App& app) {
  std::vector<Diagnostic> defects;
  const std::vector<std::string> known = long_names(app);
  bool after_unknown = false;
  for (const std::string& word : app.remaining()) {
    const bool option = word.size() > 1 && word.front() == '-';
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

// CLI11 stops at an option without its value; only the last word can be one.
bool lacks_value(const CLI::App& app, const std::string& word) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (word == "--" + name) return option->get_items_expected_min() > 0;
  return false;
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
  CLI::Option* option = app_->add_option(names, value, help)->type_name(type)->group(group);
  if constexpr (std::is_same_v<T, std::vector<int64_t>>)
    option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
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
  std::vector<Diagnostic> defects;
  helped = false;
  const bool is_value = args.size() > 1 && lacks_value(*app_, args[args.size() - 2]);
  if (!args.empty() && !is_value && lacks_value(*app_, args.back())) {
    defects.push_back({args.back(), "needs a value", ""});
    args.pop_back();
  }
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its end
  try {
    app_->parse(args);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_->help());
    helped = true;
    return {};
  } catch (const CLI::ParseError& error) {
    defects.push_back({"command line", printable(error.what()), ""});
    return defects;
  }
  for (Diagnostic& d : unknown_arguments(*app_)) defects.push_back(std::move(d));
  return defects;
}

}  // namespace rlk
