#pragma once
// From what was asked for to a Plan. Pure, except that the model's config.json is read and, where a
// run is about to start, that input files are looked for; the same inputs give the same plan.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/plan/plan.h"
#include "rlk/profile/profile.h"

namespace rlk {

// What the plan needs to know of the machine.
struct HostFacts {
  int cores = 1;
  bool cuda_built = false;
  struct Gpu {
    std::string name;
    uint64_t memory_bytes = 0;
  };
  std::vector<Gpu> gpus;
};

// An option as it was typed.
struct GivenOption {
  std::string name;  // long name
  std::string text;
};

struct PlanInputs {
  Command command = Command::verify;
  bool starting = false;  // the run starts now: input files must be there, the run id must be new
  std::vector<GivenOption> command_line;
  std::map<std::string, std::string> environment;
  std::optional<Profile> profile;   // nothing: it could not be read, and `defects` says why
  std::vector<Diagnostic> defects;  // found before, reported with whatever is found here
  HostFacts host;
  std::filesystem::path
      working_folder;  // of relative paths on the command line and in the environment
  std::string default_run_id;
};

// Throws InputError with every defect of every source.
Plan make_plan(const PlanInputs&);

// Fills kv_pages, max_running, max_tokens_per_gpu (unless given), gpu_memory_utilization (unless
// given), arena_bytes and memory. `gpu_memory_bytes` is 0 on the CPU. Reports a plan that cannot
// fit.
void plan_memory(Plan&, uint64_t gpu_memory_bytes, std::vector<Diagnostic>& defects);

}  // namespace rlk
