#include "subprocess.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "rlk/base/error.h"

namespace rlk {

pid_t start_process(std::vector<std::string> argv, int in, int out) {
  constexpr int kCannotExecute = 127;  // as shells say it
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw system_error("fork for " + argv[0]);
  if (pid > 0) return pid;
  // Only async-signal-safe calls from here: other threads' locks are held for ever.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kCannotExecute);
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if ((in < 0 || ::dup2(in, STDIN_FILENO) >= 0) && (out < 0 || ::dup2(out, STDOUT_FILENO) >= 0))
    ::execvp(words[0], words.data());
  ::_exit(kCannotExecute);
}

}  // namespace rlk
