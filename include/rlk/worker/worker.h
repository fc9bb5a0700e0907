#pragma once
// A rank's process: `rlk worker`, started by the launcher.

#include <chrono>
#include <filesystem>

namespace rlk {

struct WorkerCall {
  std::filesystem::path plan;  // plan.json
  int rank;
  int world_fd, status_fd;            // inherited: the ranks' shared memory, the launcher's pipe
  std::chrono::milliseconds timeout;  // of waiting for another rank
};

// Runs the plan's steps as one rank and returns an exit code. Reports to the launcher through the
// status pipe; a failure is also written to the run directory.
int worker_main(const WorkerCall&);

}  // namespace rlk
