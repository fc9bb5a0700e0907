#pragma once
// Shows a run's progress: one line that is rewritten in place on a terminal; elsewhere a plain line
// for each step, and one every ten seconds inside a step. Writes to a FILE that the caller owns;
// one thread.

#include <chrono>
#include <cstdio>
#include <string>

#include "rlk/launch/status.h"

namespace rlk {

// "step 4/60 rollout 35% 812 tok/s reward 0.42, 3m20s left"
std::string progress_text(const Progress&);

class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  void show(const StatusMessage&);
  void finish();  // ends the rewritten line, so that what follows starts on its own

 private:
  std::FILE* out_;
  bool terminal_;
  bool open_line_ = false;
  bool started_ = false;
  Progress shown_;
  std::chrono::steady_clock::time_point next_plain_;
};

}  // namespace rlk
