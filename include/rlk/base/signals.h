#pragma once
// The signals by which a user ends a command. What is blocked is blocked for the calling thread.

#include <csignal>

#include "rlk/base/error.h"

namespace rlk {

// A signal ended the work, and what was unfinished has been removed: exit 130.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// SIGINT, SIGTERM and SIGHUP without those that this process was started to ignore (nohup): blocked
// ones would be received all the same.
sigset_t ending_signals();

// Keeps them back while it lives, for work that leaves something behind unless it is unwound.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();  // one that came after the last check takes effect now
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  void check() const;  // throws Interrupted when one came

 private:
  sigset_t held_, before_;
};

}  // namespace rlk
