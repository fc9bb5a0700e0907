#include "subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rlk/base/error.h"
#include "rlk/base/signals.h"

namespace rlk {
namespace {

constexpr size_t kLongestLine = 64 << 10;  // what a child writes without a line end is cut here

struct PipeEnds {
  Fd read, write;
};

PipeEnds make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

// What a child says through its error pipe when it cannot become the binary.
struct SpawnError {
  const char* call;  // a literal: parent and child are copies of one image until exec
  int error;
};

[[noreturn]] void give_up(int errors, const char* call) {
  const SpawnError e{call, errno};
  [[maybe_unused]] const ssize_t n = write(errors, &e, sizeof e);
  _exit(127);
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const SpawnSpec& spec, char* const* argv, pid_t parent, int output,
                         int status, int errors) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(errors, "prctl(PR_SET_PDEATHSIG)");
  if (getppid() != parent) _exit(127);  // the parent died before the line above

  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  // Out of the way of the numbers to be filled, whatever numbers they have.
  const int above = 4 + static_cast<int>(spec.descriptors.size());
  const auto lift = [&](int fd) {
    const int lifted = fcntl(fd, F_DUPFD_CLOEXEC, above);
    if (lifted < 0) give_up(errors, "fcntl(F_DUPFD)");
    return lifted;
  };
  errors = lift(errors);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) give_up(errors, "open /dev/null");
  const int in = lift(null), out = lift(output), report = lift(status);
  int lifted[8];
  size_t count = 0;
  for (int fd : spec.descriptors) lifted[count++] = lift(fd);

  int target = 0;
  const auto place = [&](int fd) {
    if (dup2(fd, target++) < 0) give_up(errors, "dup2");
  };
  place(in);
  place(out);
  place(out);
  for (size_t i = 0; i < count; ++i) place(lifted[i]);
  place(report);
  // What others in this process opened without close-on-exec is none of the child's business.
  syscall(SYS_close_range, target, ~0u, 1u << 2 /* CLOSE_RANGE_CLOEXEC */);

  execv(spec.binary.c_str(), argv);
  give_up(errors, "exec");
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() {
  return std::exchange(fd_, -1);
}

void Fd::reset() {
  if (fd_ >= 0) close(release());
}

Subprocess Subprocess::spawn(const SpawnSpec& spec) {
  RLK_CHECK(spec.descriptors.size() <= 8, spec.descriptors.size());
  std::vector<char*> argv;
  for (const std::string& arg : spec.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  PipeEnds output = make_pipe(), status = make_pipe(), errors = make_pipe();
  for (const Fd* fd : {&output.read, &status.read})
    if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) throw system_error("fcntl(O_NONBLOCK)");

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw system_error("fork");
  if (pid == 0)
    become(spec, argv.data(), parent, output.write.get(), status.write.get(), errors.write.get());
  setpgid(pid, pid);  // also here: whoever comes first; fails once the child has exec'd
  errors.write.reset();

  SpawnError failure{};
  ssize_t n;
  do n = read(errors.read.get(), &failure, sizeof failure);
  while (n < 0 && errno == EINTR);
  if (n != 0) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    errno = n == sizeof failure ? failure.error : EIO;
    throw system_error(std::string(n == sizeof failure ? failure.call : "spawn") + " " +
                       spec.binary.string());
  }
  // glibc 2.36 declares pidfd_open for C alone.
  Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (ended.get() < 0) {
    const Error error = system_error("pidfd_open");
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    throw error;
  }
  Subprocess process;
  process.pid_ = pid;
  process.ended_ = std::move(ended);
  process.running_ = true;
  process.pipe_[static_cast<int>(Channel::output)].fd = std::move(output.read);
  process.pipe_[static_cast<int>(Channel::status)].fd = std::move(status.read);
  return process;
}

void Subprocess::signal_group(int signal) const {
  if (running_) kill(-pid_, signal);
}

bool Subprocess::has_ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

int Subprocess::reap() {
  // Before the wait: until then its number, and so its group's, cannot be taken by another process.
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  ended_.reset();
  return status;
}

SubprocessSet::SubprocessSet() {
  const sigset_t mask = ending_signals();
  if (sigprocmask(SIG_BLOCK, &mask, &previous_mask_) != 0) throw system_error("sigprocmask");
  signals_ = Fd(signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC));
  if (signals_.get() < 0) {
    const Error error = system_error("signalfd");
    sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
    throw error;
  }
}

SubprocessSet::~SubprocessSet() {
  signal_all(SIGKILL);
  for (Subprocess& p : processes_)
    if (p.running_) p.reap();
  // A second Ctrl-C that came too late to matter must not kill the caller when the mask is
  // restored.
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
  }
  sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

size_t SubprocessSet::add(const SpawnSpec& spec) {
  processes_.push_back(Subprocess::spawn(spec));
  return processes_.size() - 1;
}

bool SubprocessSet::any_running() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Subprocess& p) { return p.running(); });
}

void SubprocessSet::signal_all(int signal) const {
  for (const Subprocess& p : processes_) p.signal_group(signal);
}

void SubprocessSet::wait(std::chrono::steady_clock::time_point deadline, Listener& listener) {
  std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}};
  for (const Subprocess& p : processes_) {
    if (p.running_) polls.push_back({p.ended_.get(), POLLIN, 0});
    for (const auto& pipe : p.pipe_)
      if (pipe.fd.get() >= 0) polls.push_back({pipe.fd.get(), POLLIN, 0});
  }
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  const int limit = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  if (poll(polls.data(), polls.size(), limit) < 0 && errno != EINTR) throw system_error("poll");

  read_signals(listener);
  std::vector<size_t> ended;
  for (size_t i = 0; i < processes_.size(); ++i)
    if (processes_[i].running_ && processes_[i].has_ended()) ended.push_back(i);
  for (size_t i = 0; i < processes_.size(); ++i) drain(i, listener);
  for (size_t i : ended) {
    const int status = processes_[i].reap();
    drain(i, listener);  // what it, or a child of it, wrote last
    for (auto& pipe : processes_[i].pipe_) pipe.fd.reset();
    for (Channel channel : {Channel::output, Channel::status}) {
      std::string& partial = processes_[i].pipe_[static_cast<int>(channel)].partial;
      if (!partial.empty()) listener.on_line(i, channel, partial);
      partial.clear();
    }
    listener.on_exit(i, status);
  }
  listener.on_pass();
}

void SubprocessSet::read_signals(Listener& listener) {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info)
    listener.on_signal(static_cast<int>(info.ssi_signo));
}

void SubprocessSet::drain(size_t index, Listener& listener) {
  read_lines(index, Channel::output, listener);
  read_lines(index, Channel::status, listener);
}

void SubprocessSet::read_lines(size_t index, Channel channel, Listener& listener) {
  Subprocess::Pipe& pipe = processes_[index].pipe_[static_cast<int>(channel)];
  char buffer[64 << 10];
  // A bound, so that one child that never stops writing cannot hold up the others.
  for (int reads = 0; reads < 16 && pipe.fd.get() >= 0; ++reads) {
    const ssize_t n = read(pipe.fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) throw system_error("read from a rank's pipe");
    if (n == 0) return pipe.fd.reset();
    pipe.partial.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = pipe.partial.find('\n', begin)) != std::string::npos; begin = end + 1)
      listener.on_line(index, channel, std::string_view(pipe.partial).substr(begin, end - begin));
    pipe.partial.erase(0, begin);
    if (pipe.partial.size() > kLongestLine) {
      listener.on_line(index, channel, pipe.partial);
      pipe.partial.clear();
    }
  }
}

}  // namespace rlk
