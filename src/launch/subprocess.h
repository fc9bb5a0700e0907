#pragma once
// Child processes that are watched together. A Subprocess is passive: the SubprocessSet waits,
// reads, reaps and tells a Listener.
//
// Ownership: the set owns processes and pipes; its destructor kills and reaps what still runs.
// Signals: the set blocks ending_signals() from its construction to its destruction and takes them
// from a signalfd, so that nothing runs in a handler and no wait can miss one. Ends are
// seen through pidfds: a library's thread that does not block SIGCHLD would swallow it.
// Threads: one, the one that made the set.

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// A descriptor that is closed with its owner. Move-only.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_;
};

struct SpawnSpec {
  std::filesystem::path binary;
  std::vector<std::string> argv;
  std::vector<int> descriptors;  // become 3, 4, ... of the child, before its status pipe
};

// Pipes a child writes lines to.
enum class Channel { output, status };  // stdout and stderr; the descriptor after `descriptors`

class Subprocess {
 public:
  // fork and exec, in a process group of its own, killed by the kernel when the calling thread
  // ends. Throws Error when any step fails, exec included, and leaves nothing behind then.
  static Subprocess spawn(const SpawnSpec&);

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  void signal_group(int signal) const;  // nothing when it does not run any more

 private:
  friend class SubprocessSet;
  struct Pipe {
    Fd fd;
    std::string partial;  // a line whose end has not come yet
  };
  bool has_ended() const;  // without reaping
  int reap();              // the wait status; its group's other processes are killed first

  pid_t pid_ = -1;
  bool running_ = false;
  Fd ended_;      // pidfd: readable once the process is a zombie
  Pipe pipe_[2];  // by Channel
};

class SubprocessSet {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_line(size_t index, Channel, std::string_view line) = 0;
    virtual void on_exit(size_t index, int wait_status) = 0;  // after its last line
    virtual void on_signal(int signal) = 0;                   // the caller's process got it
    virtual void on_pass() = 0;                               // after the events of one wait
  };

  SubprocessSet();
  ~SubprocessSet();
  SubprocessSet(const SubprocessSet&) = delete;
  SubprocessSet& operator=(const SubprocessSet&) = delete;

  size_t add(const SpawnSpec&);  // returns the index
  const Subprocess& at(size_t index) const { return processes_[index]; }
  size_t size() const { return processes_.size(); }
  bool any_running() const;
  void signal_all(int signal) const;

  // Waits for events until `deadline` and reports them. Of the events found together, lines come
  // before exits: what any process wrote before another one ended is heard first.
  void wait(std::chrono::steady_clock::time_point deadline, Listener&);

 private:
  void read_signals(Listener&);
  void read_lines(size_t index, Channel, Listener&);
  void drain(size_t index, Listener&);

  sigset_t previous_mask_;
  Fd signals_;
  std::vector<Subprocess> processes_;
};

}  // namespace rlk
