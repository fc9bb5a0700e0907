#pragma once
// Command lines through CLI11. Names and arity only: what a value means is checked by whoever reads
// it, so that all errors of one input are reported together.

#include <CLI/CLI.hpp>
#include <vector>

#include "commands.h"
#include "rlk/base/error.h"

namespace rlk {

// Parses into what `app`'s options are bound to and returns every defect of the syntax. On --help
// prints the help text and sets `helped`.
std::vector<Diagnostic> parse_arguments(CLI::App& app, Arguments args, bool& helped);

// An app with rlk's conventions: `title` is "rlk verify: what it does".
void prepare_app(CLI::App& app, const std::string& title);

}  // namespace rlk
