#include "job_request.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "arguments.h"
#include "rlk/build_info/build_info.h"
#include "rlk/device/gpus.h"
#include "rlk/profile/option_table.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> rlk_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (text.starts_with("RLK_") && equals != text.npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

std::string new_run_id(const std::string& command) {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{}-{:%Y%m%dT%H%M%SZ}-{:04x}", command, fmt::gmtime(now),
                     std::random_device{}() & 0xffff);
}

struct CallFlags {
  std::string profile, format = "text", command;
  bool wait = false, detach = false, dry_run = false, allow_dirty = false;
};

void add_call_options(CommandLine& line, bool plan, CallFlags& call) {
  const char* group = "Call";
  line.option("--profile", call.profile,
              "profile; else RLK_PROFILE, RLK_REPRO_PROFILE, .rlk-profile.json, the bundled "
              "tiny CPU one",
              "FILE", group);
  line.option("--format", call.format, "what is printed (text)", "text|json", group);
  if (plan) {
    line.option("command", call.command, "verify or run: whose plan (run)", "");
    return;
  }
  line.flag("--wait", call.wait, "stay until the run has ended (the default)", group);
  line.flag("--detach", call.detach, "start the run in the background and return", group);
  line.flag("--dry-run", call.dry_run, "check everything, print the plan, start nothing", group);
  line.flag("--allow-dirty", call.allow_dirty, "no warning when built from a changed checkout",
            group);
}

void add_plan_options(CommandLine& line, std::vector<GivenOption>& given) {
  for (const OptionSpec& spec : option_table()) {
    const std::string names = "--" + spec.name + (spec.alias.empty() ? "" : ",--" + spec.alias);
    const auto give = [&given, &spec](const std::string& text) {
      given.push_back({spec.name, text});
    };
    if (spec.value.empty())
      line.on_flag(
          names, [give] { give("true"); }, spec.help, spec.group);
    else
      line.on_option(names, give, spec.help, spec.value, spec.group);
  }
}

void read_call_flags(const CallFlags& call, JobRequest& job) {
  auto& defects = job.inputs.defects;
  if (call.format != "text" && call.format != "json")
    defects.push_back({"--format " + call.format, "must be text or json", ""});
  if (call.wait && call.detach) defects.push_back({"--detach", "must not stand beside --wait", ""});
  if (!call.command.empty() && call.command != "verify" && call.command != "run")
    defects.push_back({"\"" + call.command + "\"", "must be verify or run", ""});
  job.json = call.format == "json";
  job.detach = call.detach;
  job.dry_run = call.dry_run;
  job.allow_dirty = call.allow_dirty;
}

}  // namespace

fs::path home_folder() {
  const char* home = std::getenv("RLK_HOME");
  return home != nullptr && *home != '\0' ? home : RLK_SOURCE_DIR;
}

HostFacts host_facts() {
  HostFacts host;
  cpu_set_t mine;
  if (::sched_getaffinity(0, sizeof mine, &mine) == 0) host.cores = CPU_COUNT(&mine);
  host.cuda_built = build_info().cuda;
  for (const GpuInfo& gpu : gpu_host().gpus) host.gpus.push_back({gpu.name, gpu.memory_bytes});
  return host;
}

// Order: --profile, RLK_PROFILE, RLK_REPRO_PROFILE, .rlk-profile.json, the bundled tiny CPU
// profile.
fs::path find_profile(const std::string& given) {
  if (!given.empty()) return given;
  for (const char* name : {"RLK_PROFILE", "RLK_REPRO_PROFILE"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  std::error_code ignored;
  const fs::path local = ".rlk-profile.json";
  return fs::exists(local, ignored) ? local : home_folder() / "profiles" / "tiny.json";
}

std::optional<JobRequest> read_job_request(const std::string& command, const Arguments& args) {
  const bool plan = command == "plan";
  JobRequest job;
  PlanInputs& in = job.inputs;
  CallFlags call;
  CommandLine line(
      "rlk " + command,
      plan ? "rlk plan [verify|run]: what would be done, fully expanded; nothing is started"
           : "rlk " + command + ": plan, launch, check, seal");
  add_call_options(line, plan, call);
  add_plan_options(line, in.command_line);
  bool helped = false;
  in.defects = line.parse(args, helped);
  if (helped) return std::nullopt;
  read_call_flags(call, job);

  const std::string job_command = !plan ? command : call.command == "verify" ? "verify" : "run";
  in.command = job_command == "verify" ? Command::verify : Command::run;
  in.starting = !plan;
  in.environment = rlk_environment();
  in.host = host_facts();
  in.working_folder = fs::current_path();
  in.default_run_id = plan ? job_command + "-<UTC>-<4 hex>" : new_run_id(job_command);
  try {
    in.profile = read_profile(find_profile(call.profile));
  } catch (const InputError& error) {
    in.defects.insert(in.defects.end(), error.diagnostics().begin(), error.diagnostics().end());
  }
  return job;
}

}  // namespace rlk
