#pragma once
// Runs the ranks of a plan as processes of this host and watches them to their end.
//
// Each rank is this binary again (`/proc/self/exe worker ...`, no shell) in a process group of its
// own. It inherits the shared world (kWorldFd) and a status pipe (kStatusFd), reads /dev/null, and
// writes to a pipe that the launcher copies line by line into <run_dir>/run.log as "[rank N] ...".
// The kernel kills it when the launcher dies, however that happens.
//
// The first failure stops all: the world's abort flag is raised, then TERM, then KILL; every
// process is reaped before launch() returns. SIGINT, SIGTERM and SIGHUP do the same and a second
// one kills at once. launch() blocks these signals while it runs and restores the mask.
// Call it from the process's first thread: the kernel ties a child's life to the thread that made
// it. One launch at a time.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rlk/launch/status.h"
#include "rlk/plan/plan.h"

namespace rlk {

struct LaunchLimits {
  std::chrono::milliseconds ready{120'000};  // from the start to `ready`
  std::chrono::milliseconds phase{600'000};  // between two messages of a rank, `alive` apart
  std::chrono::milliseconds collective{
      540'000};  // a wait inside a collective; shorter, since its message says more
  std::chrono::milliseconds abort_grace{500};   // abort flag -> TERM
  std::chrono::milliseconds term_grace{3'000};  // TERM -> KILL
  std::chrono::milliseconds silence{15'000};    // between two messages of any kind
};

struct LaunchConfig {
  std::filesystem::path binary = "/proc/self/exe";
  std::vector<std::string> args;  // of every rank: {"worker", "--plan", "<run_dir>/plan.json"}
  int ranks = 1;
  size_t arena_bytes = 0;
  std::string run_id;
  std::filesystem::path run_dir;  // exists; run.log and job-status.txt are written there
  LaunchLimits limits;
  std::function<void(const StatusMessage&)> on_status;  // rank 0's messages, called between waits
};

LaunchConfig launch_config(const Plan&);

// argv of a rank: "rlk", args, then --rank R --world-fd 3 --status-fd 4 --timeout-ms N (the
// collective limit). Pure; the manifest records it.
std::vector<std::string> worker_argv(const LaunchConfig&, int rank);

struct RankResult {
  pid_t pid = 0;  // 0: never started
  int code = 0;   // exit code; 0 when a signal ended it
  int signal = 0;
  bool done = false;  // reported `done`
  std::string phase = "start";
  int64_t step = 0;
};

struct LaunchFailure {
  int rank = -1;       // -1: the launcher itself
  std::string phase;   // "rollout of step 3"
  std::string reason;  // "killed by SIGSEGV", "no progress for 600 s", the worker's message
  std::vector<std::string> last_lines;  // of the rank's output
  std::string text() const;             // one line
};

struct LaunchResult {
  std::vector<RankResult> ranks;
  std::optional<LaunchFailure> failure;  // the first one
  int interrupted_by = 0;                // signal that the launcher received

  bool ok() const { return !failure && interrupted_by == 0; }
  int exit_code() const;     // kExitOk, kExitFailed or kExitInterrupted
  std::string text() const;  // one line: what happened
};

// Never throws for what happens to the run: that is in the result. <run_dir>/job-status.txt says
// the same.
LaunchResult launch(const LaunchConfig&);

}  // namespace rlk
