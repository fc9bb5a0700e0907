#pragma once
// A rank's process: `rlk worker --plan FILE --rank R --world-fd N --status-fd N --timeout-ms N`,
// started by the launcher.

#include <string>
#include <vector>

namespace rlk {

// Runs the plan's steps as one rank and returns an exit code. Reports to the launcher through the
// status pipe; a failure is also written to the run directory.
int worker_main(const std::vector<std::string>& args);

}  // namespace rlk
