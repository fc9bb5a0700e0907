// doctor: whether this host, profile and its files can run, line by line, and what to type next.

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "arguments.h"
#include "job_request.h"
#include "preflight.h"
#include "rlk/base/json.h"
#include "rlk/base/text.h"
#include "rlk/build_info/build_info.h"
#include "rlk/device/gpus.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLeastShm = uint64_t{64} << 20;    // shared arenas of eight tiny ranks
constexpr uint64_t kLeastDisk = uint64_t{256} << 20;  // a run directory of the tiny profile

struct Check {
  std::string name;
  bool pass;
  std::string found, next;  // what is there; what to do when it is not right
};
using Checks = std::vector<Check>;

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs s {};
  return statvfs(folder.c_str(), &s) == 0 ? uint64_t{s.f_bavail} * s.f_frsize : 0;
}

fs::path nearest_existing(fs::path path) {
  std::error_code ignored;
  while (!path.empty() && path != path.root_path() && !fs::exists(path, ignored))
    path = path.parent_path();
  return path.empty() ? fs::path(".") : path;
}

void check_host(Checks& checks) {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  checks.push_back(
      {"cpu", v3,
       fmt::format("x86-64-v3 {}, {} cores", v3 ? "yes" : "no", sysconf(_SC_NPROCESSORS_ONLN)),
       "rlk needs AVX2, FMA and BMI2"});
  const uint64_t shm = free_bytes("/dev/shm");
  checks.push_back({"shared memory", shm >= kLeastShm && access("/dev/shm", W_OK) == 0,
                    fmt::format("/dev/shm has {} free", format_bytes(shm)),
                    "make /dev/shm writable and larger (a container: --shm-size=8g)"});
}

void check_gpus(const Profile& profile, Checks& checks) {
  const GpuHost host = gpu_host();
  std::string found = fmt::format("{} GPUs", host.gpus.size());
  if (!host.gpus.empty())
    found += fmt::format(" ({}, driver {})", host.gpus.front().name, host.driver);
  if (profile.requirements.backend == "cpu") {
    checks.push_back({"gpu", true, found + "; the profile asks for none", ""});
    return;
  }
  const size_t wanted = static_cast<size_t>(
      std::max(1, profile.requirements.ranks / std::max(1, profile.ranks_per_gpu)));
  const bool needed = profile.requirements.backend == "cuda";
  checks.push_back({"gpu", !needed || host.gpus.size() >= wanted,
                    found + fmt::format(", the profile wants {}", wanted),
                    "run on a host with these GPUs, or take profiles/tiny.json"});
  checks.push_back({"cuda build", !needed || build_info().cuda,
                    build_info().cuda ? "in this binary" : "not in this binary",
                    "build with RLK_PRESET=cuda ./rlk"});
}

// How to get the file that a defect is about, by the profile's paths.
std::string next_step(const Diagnostic& defect, const Profile& profile) {
  const auto about = [&](const std::optional<fs::path>& path, const char* option) {
    return path ? defect.where.starts_with(path->string()) : defect.where == option;
  };
  const Profile::Paths& paths = profile.paths;
  if (about(paths.prompt_data, "--prompt-data"))
    return "rlk prepare --download-data --out " + paths.prompt_data.value_or("FILE").string() +
           ", or --convert FILE of your own";
  if (about(paths.model_root, "--model-root") || about(paths.ref_load, "--ref-load"))
    return "put a Qwen3 folder from Hugging Face there; one to try: rlk prepare --synthetic "
           "qwen3-0.6b --tokenizer-dir DIR --out NEW";
  return "rlk plan verify shows every value, docs/formats.md explains every key";
}

// One line per defect of the input.
void add_defects(const std::string& name, const InputError& error,
                 const std::optional<Profile>& profile, Checks& checks) {
  for (const Diagnostic& d : error.diagnostics())
    checks.push_back(
        {name, false, d.text(),
         profile ? next_step(d, *profile) : "docs/formats.md explains every key of a profile"});
}

void check_output(const Plan& plan, Checks& checks) {
  const fs::path folder = nearest_existing(plan.output_root);
  const uint64_t free = free_bytes(folder);
  const bool writable = access(folder.c_str(), W_OK) == 0;
  checks.push_back({"output", writable && free >= kLeastDisk,
                    fmt::format("{}: {}{} free", plan.output_root.string(),
                                writable ? "" : "not writable, ", format_bytes(free)),
                    "choose another paths.output_root or --output-root"});
}

void check_job(const std::string& profile, Checks& checks) {
  Arguments args = {"verify"};
  if (!profile.empty()) args.insert(args.end(), {"--profile", profile});
  const auto job = read_job_request("plan", args);
  if (job->inputs.profile) {
    checks.push_back({"profile", true,
                      job->inputs.profile->name + " (" + job->inputs.profile->file.string() + ")",
                      ""});
    std::string ignored;
    for (const std::string& key : job->inputs.profile->ignored)
      ignored += (ignored.empty() ? "" : ", ") + printable(key);
    if (!ignored.empty())
      checks.push_back(
          {"profile keys", true, "ignored, they speak to another framework: " + ignored, ""});
    check_gpus(*job->inputs.profile, checks);
  }
  try {
    const Plan plan = make_plan(job->inputs);
    checks.push_back({"plan", true, fmt::format("{} ranks", plan.options.topology.ranks), ""});
    check_output(plan, checks);
    try {
      check_inputs(plan, job->inputs.profile->file);
      checks.push_back({"files", true,
                        plan.synthetic
                            ? "none: the model is synthetic"
                            : "model, tokenizer and prompts fit each other; every weight was read",
                        ""});
    } catch (const InputError& error) {
      add_defects("files", error, job->inputs.profile, checks);
    }
  } catch (const InputError& error) {
    const auto& read = job->inputs.profile;
    add_defects(read ? "plan" : "profile", error, read, checks);
    // Without a plan nothing else is read, but what is missing is missing.
    std::error_code ignored;
    for (const auto& path : {read ? read->paths.prompt_data : std::nullopt,
                             read ? read->paths.ref_load : std::nullopt})
      if (path && !fs::exists(*path, ignored))
        add_defects("files", InputError(path->string(), "is not there"), read, checks);
  }
}

void print(const Checks& checks, bool json) {
  if (json) {
    Json list = Json::array();
    for (const Check& c : checks)
      list.push_back({{"check", c.name},
                      {"pass", c.pass},
                      {"found", c.found},
                      {"next", c.pass ? "" : c.next}});
    fmt::print("{}\n", list.dump(2, ' ', false, Json::error_handler_t::replace));
    return;
  }
  for (const Check& c : checks) {
    fmt::print("{}  {:<14} {}\n", c.pass ? "PASS" : "FAIL", c.name, c.found);
    if (!c.pass && !c.next.empty()) fmt::print("      {:<14} next: {}\n", "", c.next);
  }
}

}  // namespace

int doctor_command(const Arguments& args) {
  CommandLine line("rlk doctor", "rlk doctor: what is there, what is missing, what to type next");
  std::string profile;
  bool json = false, helped = false;
  line.option("--profile", profile, "profile, found as rlk verify finds it", "FILE");
  line.flag("--json", json, "an array of {check, pass, found, next}");
  const std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (!defects.empty()) throw InputError(defects);
  Checks checks;
  check_host(checks);
  check_job(profile, checks);
  print(checks, json);
  for (const Check& c : checks)
    if (!c.pass) return kExitUsage;
  return kExitOk;
}

}  // namespace rlk
