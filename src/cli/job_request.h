#pragma once
// What verify, run and plan were asked: the command line and the environment, not yet judged
// (plan/make_plan.h does).

#include <filesystem>
#include <optional>
#include <string>

#include "commands.h"
#include "rlk/plan/make_plan.h"

namespace rlk {

struct JobRequest {
  PlanInputs inputs;
  bool json = false, detach = false, dry_run = false, allow_dirty = false;
};

// Nothing when --help was asked for and answered. `command` is "verify", "run" or "plan".
std::optional<JobRequest> read_job_request(const std::string& command, const Arguments&);

// The profile's file: `given`, else as docs/formats.md orders it.
std::filesystem::path find_profile(const std::string& given);

HostFacts host_facts();

// The bundled files' folder: RLK_HOME, else the source tree that this binary was built from.
std::filesystem::path home_folder();

}  // namespace rlk
