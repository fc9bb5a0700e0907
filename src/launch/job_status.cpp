#include "job_status.h"

#include <cstring>
#include <ctime>

namespace rlk {
namespace {

std::string utc(std::chrono::system_clock::time_point t) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(t);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

const char* state_name(const LaunchResult* result) {
  if (result == nullptr) return "running";
  if (result->failure) return "failed";
  return result->interrupted_by != 0 ? "interrupted" : "finished";
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string end_text(const RankResult& rank) {
  if (rank.pid == 0) return "not started";
  return rank.signal != 0 ? signal_name(rank.signal) : "exit " + std::to_string(rank.code);
}

std::string job_status_text(const JobStatus& job) {
  std::string text = "run: " + job.run_id + "\nlauncher: " + std::to_string(job.launcher) +
                     "\nstarted: " + utc(job.started) + "\nstate: " + state_name(job.result) + "\n";
  if (job.result == nullptr) return text;
  text += "ended: " + utc(job.ended) + "\nmessage: " + job.result->text() + "\n";
  for (size_t r = 0; r < job.result->ranks.size(); ++r) {
    const RankResult& rank = job.result->ranks[r];
    text += "rank " + std::to_string(r) + ": pid " + std::to_string(rank.pid) + ", " +
            end_text(rank) + ", phase " + rank.phase + " of step " + std::to_string(rank.step) +
            (rank.done ? ", done\n" : "\n");
  }
  return text;
}

}  // namespace rlk
