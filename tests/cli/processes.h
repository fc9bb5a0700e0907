#pragma once
// Processes as /proc shows them.

#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace rlk::test {

// A file of /proc, which has no size; "" when the process is gone.
inline std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    // "PID (command) state ppid ...": the command may hold anything, so it is skipped from behind
    const std::string stat = text_of("/proc/" + name + "/stat");
    const size_t end = stat.rfind(") ");
    if (end != stat.npos && std::atoi(stat.c_str() + end + 4) == parent)
      children.push_back(static_cast<pid_t>(std::atoi(name.c_str())));
  }
  return children;
}

}  // namespace rlk::test
