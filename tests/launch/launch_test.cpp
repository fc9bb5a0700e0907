// Every way in which a run can end, with a worker that misbehaves on demand. After each test: no
// process, no descriptor and no shared-memory file more than before.

#include "rlk/launch/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "rlk/base/error.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<int> blocked_signals() {
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  std::vector<int> blocked;
  for (int signal = 1; signal < 32; ++signal)
    if (sigismember(&mask, signal)) blocked.push_back(signal);
  return blocked;
}

class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    // Orphans come to this process, where they can be found.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    dir_ = fs::temp_directory_path() / ("rlk-launch-test." + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directory(dir_);
    shared_ = names_in("/dev/shm");
    descriptors_ = names_in("/proc/self/fd");
    blocked_ = blocked_signals();
    start_ = steady_clock::now();
  }

  void TearDown() override {
    EXPECT_LT(steady_clock::now() - start_, milliseconds(10'000));
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(names_in("/dev/shm"), shared_);
    EXPECT_EQ(names_in("/proc/self/fd"), descriptors_);
    EXPECT_EQ(blocked_signals(), blocked_);
    fs::remove_all(dir_);
  }

  LaunchConfig config(const std::string& mode, int ranks = 4) const {
    LaunchConfig c;
    c.binary = RLK_TEST_WORKER;
    c.args = {mode};
    c.ranks = ranks;
    c.arena_bytes = 4096;
    c.run_id = "test";
    c.run_dir = dir_;
    c.limits = {milliseconds(5000), milliseconds(5000), milliseconds(4000), milliseconds(200),
                milliseconds(300)};
    return c;
  }

  // Runs `mode`, which must fail in rank 1 for `reason`.
  LaunchResult expect_failure(const LaunchConfig& c, const std::string& reason,
                              const std::string& phase = "work of step 0") {
    LaunchResult result = launch(c);
    EXPECT_TRUE(result.failure) << result.text();
    if (!result.failure) return result;
    EXPECT_EQ(result.failure->rank, 1) << result.text();
    EXPECT_EQ(result.failure->phase, phase);
    EXPECT_EQ(result.failure->reason, reason);
    EXPECT_EQ(result.exit_code(), kExitFailed);
    EXPECT_EQ(result.text().find('\n'), std::string::npos);
    const std::string status = text_of(dir_ / "job-status.txt");
    EXPECT_NE(status.find("\nstate: failed\n"), std::string::npos) << status;
    EXPECT_NE(status.find("\nmessage: " + result.text() + "\n"), std::string::npos) << status;
    return result;
  }

  fs::path dir_;
  std::vector<std::string> shared_, descriptors_;
  std::vector<int> blocked_;
  steady_clock::time_point start_;
};

TEST_F(LaunchTest, AllRanksFinish) {
  LaunchConfig c = config("normal", 8);
  std::vector<std::string> heard;
  c.on_status = [&](const StatusMessage& m) { heard.push_back(to_line(m)); };
  const LaunchResult result = launch(c);
  EXPECT_TRUE(result.ok()) << result.text();
  EXPECT_EQ(result.exit_code(), kExitOk);
  ASSERT_EQ(result.ranks.size(), 8u);
  for (const RankResult& rank : result.ranks) {
    EXPECT_TRUE(rank.done);
    EXPECT_EQ(rank.code, 0);
    EXPECT_EQ(rank.signal, 0);
    EXPECT_EQ(rank.phase, "work");
  }
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_EQ(heard[0], "{\"type\":\"ready\"}\n");
  EXPECT_NE(heard[2].find("reward 1.00"), std::string::npos);
  EXPECT_EQ(names_in(dir_), (std::vector<std::string>{"job-status.txt", "run.log"}));
  const std::string status = text_of(dir_ / "job-status.txt");
  EXPECT_NE(status.find("\nstate: finished\n"), std::string::npos) << status;
  EXPECT_NE(status.find("\nrank 7: pid "), std::string::npos) << status;
}

// A thread of some library that takes SIGCHLD: ends are noticed without it.
TEST_F(LaunchTest, EndsAreNoticedWhoeverTakesTheirSignal) {
  sigset_t only, before;
  sigemptyset(&only);
  sigaddset(&only, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &only, &before);
  std::atomic<bool> done = false;
  std::thread thief([&] {
    const timespec shortly{0, 1'000'000};
    while (!done) sigtimedwait(&only, nullptr, &shortly);
  });
  const LaunchResult result = launch(config("normal", 8));
  done = true;
  thief.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(result.ok()) << result.text();
  EXPECT_LT(steady_clock::now() - start_, milliseconds(3000));  // deadlines are at 4 s and later
}

TEST_F(LaunchTest, ExitCodeIsReported) {
  const LaunchResult result = expect_failure(config("exit7"), "exited with code 7");
  EXPECT_EQ(result.ranks[1].code, 7);
}

TEST_F(LaunchTest, ExitBeforeDoneIsAFailure) {
  expect_failure(config("exit0"), "exited with code 0 before its work was done");
}

TEST_F(LaunchTest, BadExitAfterDoneIsAFailure) {
  const LaunchResult result = expect_failure(config("late-exit"), "exited with code 9");
  EXPECT_TRUE(result.ranks[1].done);
}

TEST_F(LaunchTest, SegmentationFaultComesWithLastOutput) {
  const LaunchResult result = expect_failure(config("segv"), "killed by SIGSEGV");
  EXPECT_EQ(
      result.text(),
      "rank 1 failed in work of step 0: killed by SIGSEGV; last output: about to crash | really");
  EXPECT_EQ(result.ranks[1].signal, SIGSEGV);
  EXPECT_NE(text_of(dir_ / "run.log").find("[rank 1] about to crash\n"), std::string::npos);
}

TEST_F(LaunchTest, KilledRankIsReported) {
  expect_failure(config("kill"), "killed by SIGKILL");
}

TEST_F(LaunchTest, ThrownErrorIsReportedInsteadOfWhatItCaused) {
  for (int i = 0; i < 5; ++i) expect_failure(config("throw", 8), "the disk is on fire");
}

TEST_F(LaunchTest, HangInAPhaseMeetsTheDeadline) {
  LaunchConfig c = config("hang");
  c.limits.collective = milliseconds(300);
  c.limits.phase = milliseconds(800);
  const LaunchResult result = launch(c);
  ASSERT_TRUE(result.failure);
  EXPECT_NE(
      result.failure->reason.find("no arrival within 0.300 s of rank 1 (last seen in barrier #2"),
      std::string::npos)
      << result.text();
  EXPECT_EQ(result.ranks[1].signal, SIGTERM);
}

// A stopped process sends nothing, whatever its phase may take.
TEST_F(LaunchTest, ASilentRankIsNamedLongBeforeItsPhaseMayEnd) {
  LaunchConfig c = config("stopped");
  c.limits.phase = c.limits.collective = milliseconds(600'000);
  c.limits.silence = 2 * kHeartbeat;
  expect_failure(c, "no sign of life for 4 s");
}

TEST_F(LaunchTest, HangOfAllMeetsTheDeadline) {
  LaunchConfig c = config("all-hang");
  c.limits.phase = milliseconds(300);
  const LaunchResult result = launch(c);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->reason, "no progress within 0.300 s");
  EXPECT_LT(steady_clock::now() - start_, milliseconds(2000));
}

TEST_F(LaunchTest, SlowPhaseThatReportsMeetsNoDeadline) {
  LaunchConfig c = config("slow", 2);
  c.limits.phase = milliseconds(5000);
  EXPECT_TRUE(launch(c).ok());
  // Rank 1 is heard of every 100 ms for 800 ms; rank 0 has to live with the silence.
  c.limits.phase = milliseconds(400);
  const LaunchResult result = launch(c);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->rank, 0);
}

TEST_F(LaunchTest, RankThatIsNeverReadyMeetsTheDeadline) {
  LaunchConfig c = config("never-ready");
  c.limits.ready = milliseconds(300);
  expect_failure(c, "not ready within 0.300 s", "start of step 0");
}

TEST_F(LaunchTest, MalformedStatusIsAFailure) {
  expect_failure(config("garbage"), "sent a malformed status line: no json");
}

TEST_F(LaunchTest, RankThatIgnoresTermIsKilled) {
  LaunchConfig c = config("stubborn", 2);
  c.limits.collective = milliseconds(200);
  const LaunchResult result = launch(c);
  EXPECT_TRUE(result.failure);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
}

TEST_F(LaunchTest, ProcessesOfARankDieWithIt) {
  expect_failure(config("child"), "exited with code 7");
  int status = 0;
  EXPECT_GT(waitpid(-1, &status, 0), 0);  // its child has become ours
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(LaunchTest, EveryLineOfEveryRankIsLogged) {
  const LaunchResult result = launch(config("lines"));
  EXPECT_TRUE(result.ok()) << result.text();
  std::ifstream log(dir_ / "run.log");
  std::vector<int> next(4, 0);
  for (std::string line; std::getline(log, line);) {
    int prefix, number, rank;
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] line %d of rank %d", &prefix, &number, &rank), 3)
        << line;
    ASSERT_EQ(prefix, rank);
    ASSERT_EQ(number, next[static_cast<size_t>(rank)]++);
  }
  EXPECT_EQ(next, std::vector<int>(4, 20000));
}

TEST_F(LaunchTest, EndlessLineIsCut) {
  EXPECT_TRUE(launch(config("endless-line", 2)).ok());
  const std::string log = text_of(dir_ / "run.log");
  EXPECT_EQ(std::count(log.begin(), log.end(), 'x'), 2 << 20);
}

TEST_F(LaunchTest, WorkersInheritFiveDescriptors) {
  const int stray = open("/dev/null", O_RDONLY);  // without close-on-exec
  EXPECT_TRUE(launch(config("descriptors", 2)).ok());
  close(stray);
  const std::string log = text_of(dir_ / "run.log");
  EXPECT_NE(log.find("[rank 0] descriptors 0 1 2 3 4\n"), std::string::npos) << log;
  EXPECT_NE(log.find("[rank 1] descriptors 0 1 2 3 4\n"), std::string::npos) << log;
}

TEST_F(LaunchTest, MissingBinaryIsNamed) {
  LaunchConfig c = config("normal");
  c.binary = "/nonexistent/rlk";
  const LaunchResult result = launch(c);
  EXPECT_EQ(result.text(), "launcher: exec /nonexistent/rlk: No such file or directory");
  EXPECT_EQ(result.exit_code(), kExitFailed);
  EXPECT_EQ(result.ranks[0].pid, 0);
}

TEST_F(LaunchTest, UnwritableRunDirectoryIsNamed) {
  LaunchConfig c = config("normal");
  c.run_dir = dir_ / "absent";
  const LaunchResult result = launch(c);
  ASSERT_TRUE(result.failure);
  EXPECT_NE(result.text().find((dir_ / "absent").string()), std::string::npos) << result.text();
}

TEST_F(LaunchTest, UnopenableLogIsNamed) {
  fs::create_directory(dir_ / "run.log");
  const LaunchResult result = launch(config("normal"));
  EXPECT_EQ(result.text(), "launcher: open " + (dir_ / "run.log").string() + ": Is a directory");
  EXPECT_NE(text_of(dir_ / "job-status.txt").find("\nstate: failed\n"), std::string::npos);
}

TEST_F(LaunchTest, FullDiskUnderTheLogStopsTheRun) {
  fs::create_symlink("/dev/full", dir_ / "run.log");
  const LaunchResult result = launch(config("lines"));
  EXPECT_EQ(result.text(),
            "launcher: write " + (dir_ / "run.log").string() + ": No space left on device");
}

TEST_F(LaunchTest, CallbackThatThrowsStopsTheRun) {
  LaunchConfig c = config("normal");
  c.on_status = [](const StatusMessage&) { throw Error("cannot show this"); };
  EXPECT_EQ(launch(c).text(), "launcher: cannot show this");
}

// Runs launch() in a child of its own, for what happens to the launcher.
class LauncherProcess {
 public:
  explicit LauncherProcess(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(99);
    }
  }
  pid_t pid() const { return pid_; }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

// Until every rank of mode "pids" has said its number.
std::vector<pid_t> worker_pids(const fs::path& dir, int ranks) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path path = dir / ("pid." + std::to_string(rank));
    for (int i = 0; i < 1000 && text_of(path).empty(); ++i) usleep(5'000);
    pids.push_back(static_cast<pid_t>(std::atoi(text_of(path).c_str())));
    EXPECT_GT(pids.back(), 0) << path;
  }
  return pids;
}

TEST_F(LaunchTest, SignalToTheLauncherEndsAllWithCode130) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    fs::remove_all(dir_);
    fs::create_directory(dir_);
    LauncherProcess launcher([&] {
      fs::current_path(dir_);
      const LaunchResult result = launch(config("pids"));
      if (result.interrupted_by != signal || result.failure) _exit(98);
      _exit(result.exit_code());
    });
    const auto pids = worker_pids(dir_, 4);
    kill(launcher.pid(), signal);
    EXPECT_EQ(WEXITSTATUS(launcher.wait()), kExitInterrupted) << strsignal(signal);
    for (pid_t pid : pids) EXPECT_EQ(kill(pid, 0), -1);
    EXPECT_NE(text_of(dir_ / "job-status.txt").find("\nstate: interrupted\n"), std::string::npos);
  }
}

TEST_F(LaunchTest, ASignalThatNohupIgnoresEndsNothing) {
  LauncherProcess launcher([&] {
    fs::current_path(dir_);
    signal(SIGHUP, SIG_IGN);
    const LaunchResult result = launch(config("pids"));
    _exit(result.interrupted_by == SIGINT ? result.exit_code() : 98);
  });
  worker_pids(dir_, 4);
  kill(launcher.pid(), SIGHUP);
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(WEXITSTATUS(launcher.wait()), kExitInterrupted);
}

TEST_F(LaunchTest, SecondSignalKillsAtOnce) {
  LauncherProcess launcher([&] {
    LaunchConfig c = config("all-stubborn");
    c.limits.term_grace = milliseconds(60'000);
    const LaunchResult result = launch(c);
    _exit(result.ranks[0].signal == SIGKILL ? result.exit_code() : 98);
  });
  usleep(300'000);
  kill(launcher.pid(), SIGINT);
  usleep(100'000);
  kill(launcher.pid(), SIGINT);
  const int status = launcher.wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kExitInterrupted);
}

TEST_F(LaunchTest, KilledLauncherLeavesNoProcess) {
  LauncherProcess launcher([&] {
    fs::current_path(dir_);
    launch(config("pids"));
  });
  auto pids = worker_pids(dir_, 4);
  kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(WTERMSIG(launcher.wait()), SIGKILL);
  const auto deadline = steady_clock::now() + milliseconds(5000);
  while (!pids.empty() && steady_clock::now() < deadline) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);  // orphans are ours
    if (pid <= 0) usleep(1000);
    std::erase(pids, pid);
  }
  EXPECT_TRUE(pids.empty()) << pids.size() << " workers outlived the launcher";
  EXPECT_NE(text_of(dir_ / "job-status.txt").find("\nstate: running\n"), std::string::npos);
}

// Descriptors run out in the middle of starting: the ranks that run already are brought down.
TEST_F(LaunchTest, FailureToStartALaterRankEndsTheEarlierOnes) {
  LauncherProcess launcher([&] {
    while (open("/dev/null", O_RDONLY) < 62) {
    }
    const rlimit limit{80, 80};
    setrlimit(RLIMIT_NOFILE, &limit);
    const LaunchResult result = launch(config("all-hang", 16));
    const bool some = result.ranks[0].pid > 0 && result.ranks[15].pid == 0;
    const bool named = result.text().find("Too many open files") != std::string::npos;
    _exit(some && named && waitpid(-1, nullptr, WNOHANG) == -1 ? result.exit_code() : 98);
  });
  EXPECT_EQ(WEXITSTATUS(launcher.wait()), kExitFailed);
}

TEST_F(LaunchTest, FailedForkIsNamed) {
  LauncherProcess launcher([&] {
    fs::permissions(dir_, fs::perms::all);
    if (getuid() == 0 && setuid(65534) != 0) _exit(97);  // root has no such limit
    const rlimit limit{0, 0};
    setrlimit(RLIMIT_NPROC, &limit);
    const LaunchResult result = launch(config("normal"));
    _exit(result.text() == "launcher: fork: Resource temporarily unavailable" ? result.exit_code()
                                                                              : 98);
  });
  EXPECT_EQ(WEXITSTATUS(launcher.wait()), kExitFailed);
}

}  // namespace
}  // namespace rlk
