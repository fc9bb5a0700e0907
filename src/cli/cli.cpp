#include "rlk/cli/cli.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>

#include "commands.h"
#include "rlk/base/error.h"
#include "rlk/base/json_reader.h"
#include "rlk/base/signals.h"
#include "rlk/base/text.h"
#include "rlk/build_info/build_info.h"

namespace rlk {
namespace {

std::string usage() {
  std::string text =
      "rlk: GRPO whose training and rollout engines agree on every bit\n\n"
      "usage: rlk COMMAND [OPTIONS]        rlk help COMMAND        rlk --version\n\n";
  for (const CommandRow& row : command_table())
    if (row.summary != nullptr) text += fmt::format("  {:<10}{}\n", row.name, row.summary);
  text +=
      "\nExit codes: 0 passed, 1 the run failed, 2 bad usage, profile or input, 3 gates failed or "
      "runs "
      "differ,\n130 interrupted.\n";
  return text;
}

std::string version() {
  const BuildInfo& info = build_info();
  return fmt::format("rlk {}\nrevision  {}{}\ncompiler  {}, {}\nflags     {}\nbackends  cpu{}\n",
                     info.version, info.revision, info.dirty ? " (with changes)" : "",
                     info.compiler, info.type, info.flags, info.cuda ? ", cuda" : "");
}

const CommandRow& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandRow& row : command_table()) {
    if (name == row.name) return row;
    if (row.summary != nullptr) names.emplace_back(row.name);
  }
  const std::string near = nearest_name(name, names);
  throw InputError("rlk " + printable(name), "no such command",
                   near.empty() ? "rlk --help lists them" : "the nearest one is " + near);
}

int dispatch(Arguments args) {
  if (args.empty()) {
    fmt::print(stderr, "{}", usage());
    return kExitUsage;
  }
  std::string name = args.front();
  args.erase(args.begin());
  if (name == "--version" || name == "version") {
    fmt::print("{}", version());
    return kExitOk;
  }
  if (name == "--help" || name == "-h" || (name == "help" && args.empty())) {
    fmt::print("{}", usage());
    return kExitOk;
  }
  if (name == "help") {
    name = args.front();
    args = {"--help"};
  }
  return find_command(name).run(args);
}

// A closed descriptor 0, 1 or 2 would go to the next file that is opened, and messages into that
// file. Opened for reading: a write still fails.
void hold_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int taken = ::open("/dev/null", O_RDONLY);
}

// To stderr, which may be gone (a closed terminal): nothing can be done about that here.
void complain(const std::string& message) {
  std::fprintf(stderr, "rlk: %s\n", one_line(message).c_str());
}

void complain(const std::vector<Diagnostic>& all) {
  constexpr size_t kMostShown = 50;
  for (size_t i = 0; i < std::min(all.size(), kMostShown); ++i) complain(all[i].text());
  if (all.size() > kMostShown)
    complain("and " + std::to_string(all.size() - kMostShown) + " errors more");
}

}  // namespace

int cli_main(int argc, char** argv) {
  hold_standard_descriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a failed write, like a full disk
  try {
    const int code = dispatch(Arguments(argv + 1, argv + argc));
    // A full disk or a closed pipe behind stdout must not look like success.
    if (std::fflush(stdout) != 0) throw system_error("write to stdout");
    return code;
  } catch (const InputError& error) {
    complain(error.diagnostics());
    return kExitUsage;
  } catch (const Interrupted& error) {
    complain(error.what());
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return kExitFailed;
  } catch (const std::exception& error) {
    complain(error.what());
    return kExitFailed;
  }
}

}  // namespace rlk
