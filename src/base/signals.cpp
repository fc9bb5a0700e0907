#include "rlk/base/signals.h"

#include <cstring>

namespace rlk {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

HeldSignals::HeldSignals() : held_(ending_signals()) {
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void HeldSignals::check() const {
  const timespec now{};
  const int signal = sigtimedwait(&held_, nullptr, &now);
  if (signal > 0) throw Interrupted(std::string("interrupted by SIG") + sigabbrev_np(signal));
}

}  // namespace rlk
