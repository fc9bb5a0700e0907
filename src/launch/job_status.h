#pragma once
// job-status.txt of a local run: "key: value" lines, replaced as a whole (docs/formats.md).

#include <chrono>
#include <filesystem>
#include <string>

#include "rlk/launch/launch.h"

namespace rlk {

struct JobStatus {
  std::string run_id;
  pid_t launcher = 0;
  std::chrono::system_clock::time_point started, ended;  // ended: only with a result
  const LaunchResult* result = nullptr;                  // null: still running
};

std::string job_status_text(const JobStatus&);
// "exit 0", "SIGKILL", "not started"
std::string end_text(const RankResult&);
// "SIGSEGV"; "signal 40" where it has no name
std::string signal_name(int signal);

}  // namespace rlk
