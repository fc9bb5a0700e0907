#pragma once
// Runs the real binary as a child and keeps what it printed.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "rlk/base/file.h"
#include "temp_dir.h"

namespace rlk::test {

struct Finished {
  int code = -1;  // exit code; -1 when a signal ended it
  int signal = 0;
  std::string out, err;
};

struct Call {
  std::vector<std::string> args;
  std::map<std::string, std::string> environment =
      {};                             // beside PATH; nothing of the test's own RLK_*
  std::filesystem::path folder = {};  // working folder; empty: one of its own
  std::string stdout_file = {};       // instead of keeping `out`
  std::string stderr_file = {};       // instead of keeping `err`
};

inline Finished run_rlk(const Call& call) {
  TempDir scratch;
  const std::string out = (scratch.path() / "out").string(),
                    err = (scratch.path() / "err").string();
  const std::string to = call.stdout_file.empty() ? out : call.stdout_file;
  const std::filesystem::path folder = call.folder.empty() ? scratch.path() / "cwd" : call.folder;
  std::filesystem::create_directories(folder);

  std::vector<std::string> words = {RLK_BINARY}, variables = {"PATH=/usr/bin:/bin"};
  words.insert(words.end(), call.args.begin(), call.args.end());
  for (const auto& [name, value] : call.environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const pid_t child = ::fork();
  if (child == 0) {
    const int out_fd = ::open(to.c_str(), O_WRONLY | O_CREAT, 0600);
    const int err_fd = ::open((call.stderr_file.empty() ? err : call.stderr_file).c_str(),
                              O_WRONLY | O_CREAT, 0600);
    const int in_fd = ::open("/dev/null", O_RDONLY);
    if (out_fd < 0 || err_fd < 0 || ::chdir(folder.c_str()) != 0) ::_exit(125);
    ::dup2(in_fd, 0);
    ::dup2(out_fd, 1);
    ::dup2(err_fd, 2);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(126);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  Finished finished;
  if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
  if (call.stdout_file.empty()) finished.out = read_file(out);
  if (call.stderr_file.empty()) finished.err = read_file(err);
  return finished;
}

}  // namespace rlk::test
