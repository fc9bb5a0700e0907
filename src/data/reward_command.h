#pragma once
// The user's own verifier behind Reward (include/rlk/data/reward.h says how it is talked to). Owns
// its child processes; one thread.

#include <sys/types.h>

#include <string>
#include <vector>

#include "rlk/data/reward.h"

namespace rlk {

class RewardCommand final : public Reward {
 public:
  // `program` is a path. InputError when it is not there or not
  // executable. Processes start with the first samples.
  RewardCommand(const std::string& program, const RewardCommandOptions& options);
  ~RewardCommand() override;  // kills and reaps
  std::vector<double> score(std::span<const RewardRequest> requests) override;

 private:
  struct Process {
    pid_t pid = -1;
    int in = -1, out = -1;  // our ends of its standard input and output
    size_t request = 0;     // being scored; valid while busy
    uint64_t id = 0;
    bool busy = false;
    std::string to_write, received;
    double deadline = 0;  // monotonic seconds
  };

  void start(Process* process);
  void stop_all();
  void give(Process* process, size_t index, const RewardRequest& request);
  void wait_for_events(double now);
  void write_more(Process* process);
  // Reads what is there; true when the answer is complete, which is then in *reward.
  bool read_more(Process* process, double* reward);
  [[noreturn]] void fail(const Process& process, const std::string& what);

  std::string program_;
  RewardCommandOptions options_;
  std::vector<Process> processes_;
  uint64_t next_id_ = 0;
  std::span<const RewardRequest> requests_;
};

}  // namespace rlk
