#pragma once
// Runs a function as every rank of a shared-memory world, one forked process each, and collects
// what each has to say.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/comm/world.h"

namespace rlk::test {

using std::chrono::milliseconds;

struct RankEnd {
  std::string text;  // what the function returned, or what it threw
  bool aborted = false;
  int status = 0;  // of waitpid
};

// A report is 'r' (returned), 'a' (AbortError) or 'e' (other exception), then the text.
inline std::string run_rank(int fd, int rank, milliseconds timeout,
                            const std::function<std::string(World&)>& body) {
  try {
    auto world = shm_world_open(fd, rank, timeout);
    return "r" + body(*world);
  } catch (const AbortError& e) {
    return std::string("a") + e.what();
  } catch (const std::exception& e) {
    return std::string("e") + e.what();
  }
}

// The ranks of one world. Children that outlive the destructor or `collect`'s limit are killed.
class Ranks {
 public:
  Ranks(int count, size_t arena_bytes, milliseconds timeout,
        const std::function<std::string(World&)>& body)
      : fd_(shm_world_create(count, arena_bytes)) {
    for (int rank = 0; rank < count; ++rank) {
      int ends[2];
      if (pipe(ends) != 0) throw system_error("pipe");
      const pid_t pid = fork();
      if (pid < 0) throw system_error("fork");
      if (pid == 0) {
        const std::string report = run_rank(fd_, rank, timeout, body);
        size_t done = 0;
        while (done < report.size()) {
          const ssize_t n = write(ends[1], report.data() + done, report.size() - done);
          if (n <= 0) break;
          done += static_cast<size_t>(n);
        }
        _exit(0);
      }
      close(ends[1]);
      children_.push_back({pid, ends[0]});
    }
  }
  ~Ranks() {
    for (auto& child : children_) {
      if (child.pid > 0) kill(child.pid, SIGKILL), waitpid(child.pid, nullptr, 0);
      close(child.report);
    }
    close(fd_);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int fd() const { return fd_; }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }

  std::vector<RankEnd> collect(milliseconds limit = milliseconds(60'000)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::vector<RankEnd> ends;
    for (auto& child : children_) {
      RankEnd end;
      std::string report = read_all(child.report, deadline);
      end.aborted = !report.empty() && report[0] == 'a';
      end.text = report.empty() ? "no report" : report.substr(1);
      waitpid(child.pid, &end.status, 0);
      child.pid = -1;
      ends.push_back(std::move(end));
    }
    return ends;
  }

 private:
  struct Child {
    pid_t pid;
    int report;
  };

  std::string read_all(int fd, std::chrono::steady_clock::time_point deadline) {
    std::string text;
    while (true) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd p{fd, POLLIN, 0};
      if (left.count() <= 0 || poll(&p, 1, static_cast<int>(left.count())) <= 0) {
        for (auto& child : children_)
          if (child.pid > 0) kill(child.pid, SIGKILL);
        return "e(killed: over the test's time limit)";
      }
      char buffer[4096];
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }

  int fd_;
  std::vector<Child> children_;
};

}  // namespace rlk::test
