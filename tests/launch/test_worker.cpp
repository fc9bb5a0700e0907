// A worker that misbehaves on demand: launch_test_worker MODE --rank R --world-fd 3 --status-fd 4
// --timeout-ms N. Ranks other than `kVictim` behave: they wait for each other in a collective until
// the run ends or is aborted.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "rlk/comm/world.h"
#include "rlk/launch/status.h"

namespace rlk {
namespace {

constexpr int kVictim = 1;

[[noreturn]] void hang() {
  for (;;) pause();
}

void print_descriptors() {
  DIR* dir = opendir("/proc/self/fd");
  const int own = dirfd(dir);
  std::string all;
  while (const dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != own)
      all += std::string(" ") + entry->d_name;
  closedir(dir);
  std::printf("descriptors%s\n", all.c_str());
}

// What the victim does in phase "work"; returns for a normal end.
void misbehave(const std::string& mode, StatusWriter& status) {
  if (mode == "exit7") std::exit(7);
  if (mode == "exit0") std::exit(0);
  if (mode == "segv") {
    std::printf("about to crash\nreally\n");
    std::fflush(stdout);
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would make an exit of it
    raise(SIGSEGV);
  }
  if (mode == "kill") raise(SIGKILL);
  if (mode == "hang") hang();
  if (mode == "stopped") raise(SIGSTOP);
  if (mode == "stubborn") {
    signal(SIGTERM, SIG_IGN);
    hang();
  }
  if (mode == "garbage") {
    if (write(kStatusFd, "no json\n", 8) != 8) std::abort();
    hang();
  }
  if (mode == "slow")  // longer than the phase limit as a whole, but heard of
    for (int i = 0; i < 8; ++i) {
      usleep(100'000);
      status.progress({"work", 0, 1, i / 8.0, 10, -1, ""});
    }
  if (mode == "throw") throw Error("the disk is on fire");
  if (mode == "child") {  // a process of its own that outlives it
    if (fork() == 0) hang();
    std::exit(7);
  }
}

int work(const std::string& mode, std::map<std::string, std::string>& options) {
  const int rank = std::stoi(options["--rank"]);
  if (mode == "pids") std::ofstream("pid." + std::to_string(rank)) << getpid();
  if (mode == "descriptors") print_descriptors();
  StatusWriter status(std::stoi(options["--status-fd"]));
  if (mode == "never-ready" && rank == kVictim) hang();
  auto world = shm_world_open(std::stoi(options["--world-fd"]), rank,
                              std::chrono::milliseconds(std::stoll(options["--timeout-ms"])));
  status.ready();
  try {
    std::vector<int> members;
    for (int r = 0; r < world->size(); ++r) members.push_back(r);
    auto comm = world->group(members, "world");
    status.phase("work", 0);
    comm->barrier(nullptr);
    if (mode == "lines")
      for (int i = 0; i < 20000; ++i) std::printf("line %d of rank %d\n", i, rank);
    if (mode == "endless-line") std::printf("%s", std::string(1 << 20, 'x').c_str());
    if (mode == "all-stubborn") signal(SIGTERM, SIG_IGN), hang();
    if (mode == "pids" || mode == "all-hang") hang();
    if (rank == kVictim) misbehave(mode, status);
    comm->barrier(nullptr);
    if (rank == 0) status.progress({"work", 0, 1, 1, 100, 0, "reward 1.00"});
    status.done();
  } catch (const AbortError& e) {
    status.failed(e.what(), true);
    return 1;
  } catch (const std::exception& e) {
    status.failed(e.what(), false);
    world->abort("rank " + std::to_string(rank) + ": " + e.what());
    return 1;
  }
  if (mode == "late-exit" && rank == kVictim) return 9;
  return 0;
}

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  return rlk::work(argv[1], options);
}
