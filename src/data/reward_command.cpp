#include "reward_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "rlk/base/error.h"
#include "rlk/base/json.h"
#include "rlk/base/text.h"
#include "subprocess.h"

namespace rlk {
namespace {

constexpr size_t kMaxLine = 1 << 20;  // of an answer

double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

bool is_program(const std::string& path) {
  return access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path);
}

void make_pipe(int* ours, int* theirs, bool ours_writes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("pipe2");
  *ours = ends[ours_writes ? 1 : 0];
  *theirs = ends[ours_writes ? 0 : 1];
  if (::fcntl(*ours, F_SETFL, O_NONBLOCK) != 0) throw system_error("fcntl");
}

// Blocks SIGPIPE in this thread while it lives, and takes one that came.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  ~NoSigpipe() {
    const timespec none{};
    while (sigtimedwait(&set_, nullptr, &none) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }

 private:
  sigset_t set_{}, old_{};
};

}  // namespace

RewardCommand::RewardCommand(const std::string& program, const RewardCommandOptions& options)
    : program_(program.empty() ? "" : std::filesystem::absolute(program).string()),
      options_(options) {
  if (!is_program(program_))
    throw InputError("task.reward", "command:" + printable(program),
                     "must be the path of an executable file");
  RLK_CHECK(options.processes > 0 && options.seconds_per_sample > 0, options.processes,
            options.seconds_per_sample);
}

RewardCommand::~RewardCommand() {
  stop_all();
}

void RewardCommand::stop_all() {
  for (Process& p : processes_) {
    if (p.in >= 0) ::close(p.in);
    if (p.out >= 0) ::close(p.out);
    if (p.pid > 0) {
      ::kill(p.pid, SIGKILL);
      while (::waitpid(p.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
  processes_.clear();
}

void RewardCommand::start(Process* process) {
  int child_in = -1, child_out = -1;
  make_pipe(&process->in, &child_in, true);
  make_pipe(&process->out, &child_out, false);
  process->pid = start_process({program_}, child_in, child_out);
  ::close(child_in);
  ::close(child_out);
}

void RewardCommand::fail(const Process& process, const std::string& what) {
  const RewardRequest& r = requests_[process.request];
  const std::string text = "reward command " + program_ + ": prompt " +
                           std::to_string(r.prompt_row) + ", sample " + std::to_string(r.sample) +
                           ": " + what;
  stop_all();  // the next score() starts anew
  throw Error(text);
}

void RewardCommand::give(Process* process, size_t index, const RewardRequest& r) {
  process->request = index;
  process->id = next_id_++;
  process->busy = true;
  process->received.clear();
  process->to_write =
      Json{{"id", process->id}, {"prompt", r.prompt},         {"response", r.response},
           {"label", r.label},  {"prompt_row", r.prompt_row}, {"sample", r.sample}}
          .dump(-1, ' ', false, Json::error_handler_t::replace) +
      "\n";
  process->deadline = now_seconds() + options_.seconds_per_sample;
}

void RewardCommand::write_more(Process* p) {
  const ssize_t n = ::write(p->in, p->to_write.data(), p->to_write.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0 && errno == EPIPE) return fail(*p, "ended before it read the sample");
  if (n < 0) fail(*p, std::string("write: ") + std::strerror(errno));
  p->to_write.erase(0, static_cast<size_t>(n));
}

bool RewardCommand::read_more(Process* p, double* reward) {
  char buffer[4096];
  const ssize_t n = ::read(p->out, buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n < 0) fail(*p, std::string("read: ") + std::strerror(errno));
  if (n == 0) fail(*p, "ended without an answer");
  p->received.append(buffer, static_cast<size_t>(n));
  const size_t end = p->received.find('\n');
  if (end == std::string::npos && p->received.size() <= kMaxLine) return false;
  const std::string line = p->received.substr(0, end);
  if (end == std::string::npos) fail(*p, "answered " + printable(line) + ": a line without an end");
  if (end + 1 != p->received.size())
    fail(*p, "answered more than one line, the first " + printable(line));
  try {
    const Json json = parse_json(line, "answer");
    const bool right = json.is_object() && json.size() == 2 && json.contains("id") &&
                       json["id"] == p->id && json.contains("reward") &&
                       json["reward"].is_number() && std::isfinite(json["reward"].get<double>());
    if (!right)
      fail(*p, "answered " + printable(line) + ", not {\"id\": " + std::to_string(p->id) +
                   ", \"reward\": NUMBER}");
    *reward = json["reward"].get<double>();
  } catch (const InputError& error) {
    fail(*p, "answered " + printable(line) + ": " + error.what());
  }
  p->busy = false;
  return true;
}

void RewardCommand::wait_for_events(double now) {
  std::vector<pollfd> fds;
  double first = HUGE_VAL;
  for (const Process& p : processes_) {
    if (!p.busy) continue;
    fds.push_back({p.out, POLLIN, 0});
    if (!p.to_write.empty()) fds.push_back({p.in, POLLOUT, 0});
    first = std::min(first, p.deadline);
  }
  const int milliseconds = static_cast<int>(std::ceil(std::clamp(first - now, 0.0, 3600.0) * 1000));
  if (::poll(fds.data(), fds.size(), milliseconds) < 0 && errno != EINTR)
    throw system_error("poll");
}

std::vector<double> RewardCommand::score(std::span<const RewardRequest> requests) {
  const NoSigpipe guard;
  requests_ = requests;
  std::vector<double> rewards(requests.size());
  size_t next = 0, done = 0;
  const size_t wanted = std::min(requests.size(), static_cast<size_t>(options_.processes));
  while (processes_.size() < wanted) start(&processes_.emplace_back());
  while (done < requests.size()) {
    for (Process& p : processes_) {
      if (!p.busy && next < requests.size()) {
        give(&p, next, requests[next]);
        ++next;
      }
    }
    wait_for_events(now_seconds());
    const double now = now_seconds();
    for (Process& p : processes_) {
      if (!p.busy) continue;
      if (!p.to_write.empty()) write_more(&p);
      double reward = 0;
      if (read_more(&p, &reward)) {
        rewards[p.request] = reward;
        ++done;
      } else if (now > p.deadline) {
        fail(p, "no answer within " + format_number(options_.seconds_per_sample) + " s");
      }
    }
  }
  return rewards;
}

}  // namespace rlk
