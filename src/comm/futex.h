#pragma once
// Futex words in memory that several processes map. Lock-free; any thread or process may wait or
// wake.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace rlk {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Sleeps while *word == seen, at most `limit`. Returns early on a wake, a changed word or a signal:
// callers look again.
inline void futex_wait(const std::atomic<uint32_t>* word, uint32_t seen,
                       std::chrono::nanoseconds limit) {
  timespec t{static_cast<time_t>(limit.count() / 1'000'000'000), limit.count() % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rlk
