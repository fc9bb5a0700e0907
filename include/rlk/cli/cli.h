#pragma once
// The command line: picks a subcommand, runs it, and turns what it throws into exit codes
// (base/error.h).

namespace rlk {

int cli_main(int argc, char** argv);

}  // namespace rlk
