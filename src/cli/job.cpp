// verify, run and plan. The main sequence of rlk stands on this page: plan, run directory, ranks,
// gates, seal, summary.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "job_request.h"
#include "job_summary.h"
#include "preflight.h"
#include "rlk/base/error.h"
#include "rlk/base/sha256.h"
#include "rlk/build_info/build_info.h"
#include "rlk/device/gpus.h"
#include "rlk/gate/seal.h"
#include "rlk/launch/launch.h"
#include "rlk/launch/progress.h"
#include "rlk/run/run_writer.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

// What the run was fed, by content.
ManifestInputs manifest_inputs(const Plan& plan, const LaunchConfig& config) {
  ManifestInputs inputs;
  if (!plan.synthetic) {
    for (const auto& entry : fs::directory_iterator(plan.model_root)) {
      const fs::path& file = entry.path();
      std::error_code ignored;
      if (entry.is_regular_file(ignored) &&
          (file.extension() == ".json" || file.extension() == ".safetensors"))
        inputs.model_files[file.filename()] = hex(sha256_file(file));
    }
    inputs.data_sha256 = hex(sha256_file(plan.prompt_data));
  }
  for (int rank = 0; rank < config.ranks; ++rank)
    inputs.commands.push_back(worker_argv(config, rank));
  if (plan.options.backend == Backend::cuda)
    for (const GpuInfo& gpu : gpu_host().gpus)
      inputs.gpus.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  return inputs;
}

RunStatus status_of(const LaunchResult& result) {
  if (result.interrupted_by != 0) return RunStatus::interrupted;
  return result.ok() ? RunStatus::finished : RunStatus::failed;
}

std::vector<RankExit> exits_of(const LaunchResult& result) {
  std::vector<RankExit> exits;
  for (size_t rank = 0; rank < result.ranks.size(); ++rank)
    exits.push_back({static_cast<int>(rank), result.ranks[rank].code, result.ranks[rank].signal});
  return exits;
}

// The child goes on without a terminal; the parent says where, and leaves.
bool leave_to_background(const Plan& plan) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw system_error("fork");
  if (child > 0) {
    fmt::print("{}\n", plan.run_dir.string());
    return true;
  }
  if (::setsid() < 0) throw system_error("setsid");
  for (std::FILE* stream : {stdin, stdout, stderr})
    if (std::freopen("/dev/null", stream == stdin ? "r" : "w", stream) == nullptr)
      throw system_error("open /dev/null");
  return false;
}

int job_command(const std::string& command, const Arguments& args) {
  const auto job = read_job_request(command, args);
  if (!job) return kExitOk;  // --help
  const Plan plan = make_plan(job->inputs);
  if (command != "plan") check_inputs(plan, job->inputs.profile->file);
  if (command == "plan" || job->dry_run) {
    fmt::print("{}", job->json ? plan_to_json(plan) : plan_to_text(plan));
    return kExitOk;
  }
  if (build_info().dirty && !job->allow_dirty)
    fmt::print(stderr,
               "rlk: built from a checkout with changes; the manifest says so (--allow-dirty: no "
               "warning)\n");

  LaunchConfig config = launch_config(plan);
  RunWriter writer = RunWriter::create(plan, manifest_inputs(plan, config));
  if (job->detach && leave_to_background(plan)) return kExitOk;

  ProgressPrinter progress(stderr, ::isatty(STDERR_FILENO) == 1);
  config.on_status = [&](const StatusMessage& message) { progress.show(message); };
  const LaunchResult launched = launch(config);
  progress.finish();
  try {
    writer.finish(status_of(launched), launched.ok() ? "" : launched.text(), exits_of(launched));
  } catch (const std::exception& error) {  // what a full disk stopped first is said first
    throw Error((launched.ok() ? "" : launched.text() + "; then: ") + error.what());
  }

  const Validation validation = validate_run(plan.run_dir);
  seal_run(plan.run_dir, validation);
  const JobOutcome outcome{plan, launched, validation};
  fmt::print("{}", job->json ? outcome_json(outcome) : outcome_text(outcome));
  return outcome.exit_code();
}

}  // namespace

int verify_command(const Arguments& args) {
  return job_command("verify", args);
}
int run_command(const Arguments& args) {
  return job_command("run", args);
}
int plan_command(const Arguments& args) {
  return job_command("plan", args);
}

}  // namespace rlk
