#include "arguments.h"

#include <fmt/format.h>

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

void prepare_app(CLI::App& app, const std::string& title) {
  app.description(title);
  app.allow_extras();
  app.set_help_flag("-h,--help", "this text");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.get_formatter()->column_width(44);
}

std::vector<Diagnostic> parse_arguments(CLI::App& app, Arguments args, bool& helped) {
  std::vector<Diagnostic> defects;
  helped = false;
  const bool is_value = args.size() > 1 && lacks_value(app, args[args.size() - 2]);
  if (!args.empty() && !is_value && lacks_value(app, args.back())) {
    defects.push_back({args.back(), "needs a value", ""});
    args.pop_back();
  }
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its end
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    helped = true;
    return {};
  } catch (const CLI::ParseError& error) {
    defects.push_back({"command line", printable(error.what()), ""});
    return defects;
  }
  for (Diagnostic& d : unknown_arguments(app)) defects.push_back(std::move(d));
  return defects;
}

}  // namespace rlk
