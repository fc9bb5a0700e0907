#include "run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr size_t kKeptLines = 5;
constexpr size_t kKeptLength = 300;

}  // namespace

RunLog::RunLog(const std::filesystem::path& path, int ranks)
    : path_(path),
      file_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      last_(static_cast<size_t>(ranks)) {
  if (file_.get() < 0) throw system_error("open " + path.string());
}

void RunLog::add(int rank, std::string_view line) {
  pending_ += "[rank " + std::to_string(rank) + "] ";
  pending_ += line;
  pending_ += '\n';
  auto& last = last_[static_cast<size_t>(rank)];
  last.emplace_back(line.substr(0, kKeptLength));
  if (last.size() > kKeptLines) last.pop_front();
}

void RunLog::flush() {
  const std::string lines = std::exchange(pending_, "");
  for (size_t done = 0; done < lines.size();) {
    const ssize_t n = write(file_.get(), lines.data() + done, lines.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("write " + path_.string());
    done += static_cast<size_t>(n);
  }
}

std::vector<std::string> RunLog::last_lines(int rank) const {
  const auto& last = last_[static_cast<size_t>(rank)];
  return {last.begin(), last.end()};
}

}  // namespace rlk
