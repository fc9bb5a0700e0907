// worker: a rank of a run; started by rlk itself.

#include "arguments.h"
#include "rlk/launch/status.h"
#include "rlk/worker/worker.h"

namespace rlk {

int worker_command(const Arguments& args) {
  CommandLine line("rlk worker", "rlk worker: a rank of a run; started by rlk itself");
  std::string plan;
  int rank = -1, world_fd = kWorldFd, status_fd = kStatusFd;
  int64_t timeout_ms = -1;
  bool helped = false;
  line.option("--plan", plan, "plan.json", "FILE");
  line.option("--rank", rank, "which of the plan's ranks", "N");
  line.option("--world-fd", world_fd, "the ranks' shared memory", "N");
  line.option("--status-fd", status_fd, "pipe to the launcher", "N");
  line.option("--timeout-ms", timeout_ms, "how long a rank waits for another", "N");
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (plan.empty()) defects.push_back({"--plan", "missing", "must be a plan.json"});
  if (rank < 0)
    defects.push_back({"--rank", "missing or negative", "must be one of the plan's ranks"});
  if (timeout_ms < 0)
    defects.push_back({"--timeout-ms", "missing or negative", "must be milliseconds"});
  if (!defects.empty()) throw InputError(defects);
  return worker_main({plan, rank, world_fd, status_fd, std::chrono::milliseconds(timeout_ms)});
}

}  // namespace rlk
