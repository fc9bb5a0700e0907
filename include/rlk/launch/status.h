#pragma once
// What a worker tells the launcher while it runs: JSON lines through a pipe of its own, one
// write(2) each.
//
//   {"type":"ready"}                                    joined the world, before anything long;
//   first message, once
//   {"type":"phase","phase":"rollout","step":3}         entered a phase
//   {"type":"progress","phase":"rollout","step":3,...}  still getting on in it; also what the
//   progress line shows
//   {"type":"failed","phase":"rollout","step":3,"message":"...","secondary":false}
//   {"type":"done"}                                     finished its work; exit code 0 counts only
//   after it
//   {"type":"alive"}                                    the process runs: every kHeartbeat from
//   `ready` on, by a timer
//
// Every other message restarts the rank's deadline. So a worker sends `progress` from the loop that
// does the work, never from a timer. A StatusWriter is used by one thread beside its own timer; it
// does not own the descriptor.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace rlk {

// Descriptors that a worker inherits; also named in its arguments.
inline constexpr int kWorldFd = 3;
inline constexpr int kStatusFd = 4;

inline constexpr std::chrono::milliseconds kHeartbeat{2'000};

struct Progress {
  std::string phase;
  int64_t step = 0, steps = 0;  // current step from 0; steps of the whole run
  double fraction = 0;          // of the phase that is done, 0..1
  double tokens_per_s = 0;      // 0 = not known
  double eta_s = -1;            // of the whole run; negative = not known
  std::string note;             // "reward 0.42", may be empty
};

struct StatusMessage {
  enum class Type { ready, phase, progress, failed, done, alive };
  Type type = Type::ready;
  Progress progress;       // phase and step: also for `phase` and `failed`
  std::string message;     // failed
  bool secondary = false;  // failed: because another rank had failed before (AbortError)
};

std::string to_line(const StatusMessage&);  // ends with a newline
// nullopt: not a message of this protocol.
std::optional<StatusMessage> parse_status(std::string_view line);

class StatusWriter {
 public:
  explicit StatusWriter(int fd) : fd_(fd) {}
  ~StatusWriter();
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  void ready();  // and `alive` from now on
  void phase(const std::string& name, int64_t step);
  void progress(const Progress&);
  void done();
  // Names the phase announced last. Send it before World::abort, so that the launcher hears of the
  // first failure first. Never throws: it reports one failure while another is handled.
  void failed(const std::string& message, bool secondary) noexcept;

  const std::string& current_phase() const { return phase_; }

 private:
  void send(const StatusMessage&);  // throws Error when the launcher is gone
  void beat();
  void write(const StatusMessage&);  // REQUIRES: mutex_ held

  int fd_;
  std::string phase_ = "start";
  int64_t step_ = 0;
  std::mutex mutex_;
  std::condition_variable leaving_;
  bool left_ = false;
  std::thread timer_;
};

}  // namespace rlk
