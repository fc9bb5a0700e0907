#include "rlk/launch/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "job_status.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/comm/world.h"
#include "run_log.h"
#include "subprocess.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string seconds(milliseconds t) {
  std::string text = std::to_string(t.count() / 1000);
  if (t.count() % 1000 != 0) text += "." + std::to_string(1000 + t.count() % 1000).substr(1);
  return text + " s";
}

// How a run is brought down; each stage has a deadline that leads to the next.
enum class Stage { running, aborting, terminating, killing };

class Launcher final : SubprocessSet::Listener {
 public:
  Launcher(const LaunchConfig& config, SubprocessSet& set)
      : config_(config),
        set_(set),
        log_(config.run_dir / "run.log", config.ranks),
        last_heard_(static_cast<size_t>(config.ranks)) {
    result_.ranks.resize(static_cast<size_t>(config.ranks));
  }

  LaunchResult run() {
    try {
      start();
      while (set_.any_running()) set_.wait(next_deadline(), *this);
    } catch (const std::exception& e) {
      fail(-1, e.what(), false);
      finish_after_error();
    }
    return std::move(result_);
  }

 private:
  struct Heard {
    bool ready = false;
    bool failed = false;      // said so
    Clock::time_point at;     // progress
    Clock::time_point alive;  // anything
  };

  void start() {
    world_ = Fd(shm_world_create(config_.ranks, config_.arena_bytes));
    for (int rank = 0; rank < config_.ranks; ++rank) {
      const size_t index = set_.add({config_.binary, worker_argv(config_, rank), {world_.get()}});
      result_.ranks[index].pid = set_.at(index).pid();
      last_heard_[index].at = last_heard_[index].alive = Clock::now();
    }
  }

  // An error of the launcher's own: nothing is waited for but the ends of the processes.
  void finish_after_error() {
    set_.signal_all(SIGKILL);
    stage_ = Stage::killing;
    while (set_.any_running()) {
      try {
        set_.wait(Clock::now() + milliseconds(1000), *this);
      } catch (const std::exception&) {  // The first error is reported; reaping goes on.
      }
    }
  }

  // ---- Events

  void on_line(size_t index, Channel channel, std::string_view line) override {
    if (channel == Channel::output) return log_.add(static_cast<int>(index), line);
    const auto message = parse_status(line);
    if (!message)
      return fail(static_cast<int>(index),
                  "sent a malformed status line: " + std::string(line.substr(0, 200)), false);
    on_message(index, *message);
    const bool shown = index == 0 && message->type != StatusMessage::Type::alive;
    if (shown && config_.on_status && stage_ == Stage::running) config_.on_status(*message);
  }

  void on_message(size_t index, const StatusMessage& message) {
    RankResult& rank = result_.ranks[index];
    Heard& heard = last_heard_[index];
    heard.alive = Clock::now();
    if (message.type == StatusMessage::Type::alive) return;
    heard.at = heard.alive;
    if (message.type == StatusMessage::Type::ready) heard.ready = true;
    if (message.type == StatusMessage::Type::done) rank.done = true;
    if (message.type == StatusMessage::Type::phase ||
        message.type == StatusMessage::Type::progress) {
      rank.phase = message.progress.phase;
      rank.step = message.progress.step;
    }
    if (message.type == StatusMessage::Type::failed) {
      heard.failed = true;
      fail(static_cast<int>(index), message.message, message.secondary);
    }
  }

  void on_exit(size_t index, int status) override {
    RankResult& rank = result_.ranks[index];
    const int number = static_cast<int>(index);
    if (WIFSIGNALED(status)) {
      rank.signal = WTERMSIG(status);
      const bool ours =
          stage_ >= Stage::terminating && (rank.signal == SIGTERM || rank.signal == SIGKILL);
      if (!ours) fail(number, "killed by " + signal_name(rank.signal), false);
      return;
    }
    rank.code = WEXITSTATUS(status);
    if (last_heard_[index].failed) return;
    // While the run is brought down, a rank that leaves does what it was told.
    if (stage_ != Stage::running) return;
    if (rank.code != 0) return fail(number, "exited with code " + std::to_string(rank.code), false);
    if (!rank.done) fail(number, "exited with code 0 before its work was done", false);
  }

  void on_signal(int signal) override {
    if (stage_ != Stage::running) return enter(Stage::killing);
    result_.interrupted_by = signal;
    stop("interrupted by " + signal_name(signal));
  }

  void on_pass() override {
    log_.flush();
    if (stage_ != Stage::running) {
      if (Clock::now() >= stage_deadline_)
        enter(stage_ == Stage::aborting ? Stage::terminating : Stage::killing);
      return;
    }
    for (size_t i = 0; i < set_.size(); ++i)
      if (set_.at(i).running() && Clock::now() >= deadline(i))
        fail(static_cast<int>(i), overdue(i), false);
  }

  // ---- Deadlines

  Clock::time_point deadline(size_t index) const {
    const Heard& heard = last_heard_[index];
    if (!heard.ready) return heard.at + config_.limits.ready;
    return std::min(heard.at + config_.limits.phase, heard.alive + config_.limits.silence);
  }

  std::string overdue(size_t index) const {
    if (!last_heard_[index].ready) return "not ready within " + seconds(config_.limits.ready);
    if (Clock::now() >= last_heard_[index].alive + config_.limits.silence)
      return "no sign of life for " + seconds(config_.limits.silence);
    if (result_.ranks[index].done)
      return "no exit within " + seconds(config_.limits.phase) + " of its end";
    return "no progress within " + seconds(config_.limits.phase);
  }

  Clock::time_point next_deadline() const {
    if (stage_ != Stage::running) return stage_deadline_;
    auto next = Clock::time_point::max();
    for (size_t i = 0; i < set_.size(); ++i)
      if (set_.at(i).running()) next = std::min(next, deadline(i));
    return next;
  }

  // ---- The end

  // The first primary failure is the one; a secondary one holds its place only until that is heard
  // of.
  void fail(int rank, const std::string& reason, bool secondary) {
    if (result_.interrupted_by != 0) return;
    if (!result_.failure || (failure_is_secondary_ && !secondary)) {
      failure_is_secondary_ = secondary;
      LaunchFailure failure;
      failure.rank = rank;
      failure.reason = reason;
      if (rank >= 0) {
        const RankResult& r = result_.ranks[static_cast<size_t>(rank)];
        failure.phase = r.phase + " of step " + std::to_string(r.step);
        failure.last_lines = log_.last_lines(rank);
      }
      result_.failure = std::move(failure);
    }
    stop(result_.failure->text());
  }

  void stop(const std::string& reason) {
    if (stage_ != Stage::running) return;
    enter(Stage::aborting);
    if (world_.get() >= 0) shm_world_abort(world_.get(), reason);
  }

  void enter(Stage stage) {
    stage_ = stage;
    stage_deadline_ = Clock::now();
    if (stage == Stage::aborting) stage_deadline_ += config_.limits.abort_grace;
    if (stage == Stage::terminating) {
      stage_deadline_ += config_.limits.term_grace;
      set_.signal_all(SIGTERM);
    }
    if (stage == Stage::killing) {
      stage_deadline_ += config_.limits.term_grace;  // then again, until they are gone
      set_.signal_all(SIGKILL);
    }
  }

  const LaunchConfig& config_;
  SubprocessSet& set_;
  RunLog log_;
  Fd world_;
  std::vector<Heard> last_heard_;
  LaunchResult result_;
  bool failure_is_secondary_ = false;
  Stage stage_ = Stage::running;
  Clock::time_point stage_deadline_;
};

LaunchResult not_launched(const LaunchConfig& config, const std::string& reason) {
  LaunchResult result;
  result.ranks.resize(static_cast<size_t>(config.ranks));
  result.failure = LaunchFailure{-1, "", reason, {}};
  return result;
}

}  // namespace

LaunchConfig launch_config(const Plan& plan) {
  LaunchConfig config;
  config.args = {"worker", "--plan", (plan.run_dir / "plan.json").string()};
  config.ranks = plan.options.topology.ranks;
  config.arena_bytes = plan.arena_bytes;
  config.run_id = plan.run_id;
  config.run_dir = plan.run_dir;
  // Ranks that leave by themselves leave the GPU clean.
  if (plan.options.backend == Backend::cuda) config.limits.abort_grace = milliseconds(3'000);
  if (plan.options.command ==
      Command::run) {  // thousands of tokens a response, and ranks wait for the longest
    config.limits.phase = milliseconds(1'800'000);
    config.limits.collective = milliseconds(1'740'000);
  }
  return config;
}

std::vector<std::string> worker_argv(const LaunchConfig& config, int rank) {
  std::vector<std::string> argv{"rlk"};
  argv.insert(argv.end(), config.args.begin(), config.args.end());
  for (const auto& [name, value] : {std::pair<const char*, long long>{"--rank", rank},
                                    {"--world-fd", kWorldFd},
                                    {"--status-fd", kStatusFd},
                                    {"--timeout-ms", config.limits.collective.count()}}) {
    argv.push_back(name);
    argv.push_back(std::to_string(value));
  }
  return argv;
}

std::string LaunchFailure::text() const {
  std::string text = rank < 0 ? "launcher" : "rank " + std::to_string(rank) + " failed in " + phase;
  text += ": " + reason;
  for (size_t i = 0; i < last_lines.size(); ++i)
    text += (i == 0 ? "; last output: " : " | ") + last_lines[i];
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int LaunchResult::exit_code() const {
  if (failure) return kExitFailed;
  return interrupted_by != 0 ? kExitInterrupted : kExitOk;
}

std::string LaunchResult::text() const {
  if (failure) return failure->text();
  if (interrupted_by != 0) return "interrupted by " + signal_name(interrupted_by);
  return std::to_string(ranks.size()) + " ranks finished";
}

LaunchResult launch(const LaunchConfig& config) try {
  SubprocessSet set;  // signals stay blocked until the last file is written
  const std::filesystem::path status = config.run_dir / "job-status.txt";
  JobStatus job{config.run_id, getpid(), std::chrono::system_clock::now(), {}, nullptr};
  write_file_atomic(status, job_status_text(job));
  LaunchResult result;
  try {
    result = Launcher(config, set).run();
  } catch (const std::exception& e) {
    result = not_launched(config, e.what());
  }
  job.ended = std::chrono::system_clock::now();
  job.result = &result;
  try {
    write_file_atomic(status, job_status_text(job));
  } catch (const std::exception& e) {
    if (result.ok()) result.failure = LaunchFailure{-1, "", e.what(), {}};
  }
  return result;
} catch (const std::exception& e) {
  return not_launched(config, e.what());
}

}  // namespace rlk
