#pragma once
// run.log: every line of every rank as "[rank N] line", in the order in which the launcher heard
// them. One thread.

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "subprocess.h"

namespace rlk {

class RunLog {
 public:
  RunLog(const std::filesystem::path& path,
         int ranks);  // appends; throws Error when it cannot be opened

  void add(int rank, std::string_view line);
  void flush();  // throws Error when the lines cannot be written; they are dropped then

  // The rank's latest lines, oldest first, shortened.
  std::vector<std::string> last_lines(int rank) const;

 private:
  std::filesystem::path path_;
  Fd file_;
  std::string pending_;
  std::vector<std::deque<std::string>> last_;  // by rank
};

}  // namespace rlk
