#include "model_options.h"

#include <algorithm>

#include "job_request.h"
#include "rlk/base/text.h"
#include "rlk/build_info/build_info.h"
#include "rlk/device/gpus.h"
#include "rlk/profile/profile.h"

namespace rlk {
namespace {

constexpr int64_t kMaxThreads = 1024, kMaxTopK = 1 << 24;
constexpr double kMinTemperature = 1e-6, kMaxTemperature = 1000;  // as of runs
constexpr double kMinTopP = 1e-30;                                // still above 0 as fp32

float checked(const std::string& name, const std::string& text, bool (*allowed)(double),
              const std::string& range, std::vector<Diagnostic>& defects) {
  const auto value = parse_number(text);
  if (value && allowed(*value)) return static_cast<float>(*value);
  defects.push_back({name + " " + printable(text), "must be " + range, ""});
  return 1;
}

bool cuda_is_there() {
  return build_info().cuda && !gpu_host().gpus.empty();
}

}  // namespace

int64_t integer_option(const std::string& name, const std::string& text, int64_t min, int64_t max,
                       std::vector<Diagnostic>& defects) {
  const auto value = parse_integer(text);
  if (value && *value >= min && *value <= max) return *value;
  defects.push_back(
      {name + " " + printable(text),
       "must be an integer from " + std::to_string(min) + " to " + std::to_string(max), ""});
  return min;
}

void ModelOptions::add_to(CommandLine& line) {
  const char* group = "Model";
  line.option("--model", model_, "model folder, as from Hugging Face (the profile's)", "DIR",
              group);
  line.option("--profile", profile_, "whose model to take, found as rlk verify finds it", "FILE",
              group);
  line.option("--backend", backend_, "where to compute (cuda where it is there, or the profile's)",
              "auto|cpu|cuda", group);
  line.option("--threads", threads_, "CPU threads (all cores)", "N", group);
  line.option("--temperature", temperature_, "sampling temperature, 0 = greedy (1.0)", "X",
              "Sampling");
  line.option("--top-p", top_p_, "nucleus mass (1.0)", "X", "Sampling");
  line.option("--top-k", top_k_, "most likely tokens kept, -1 = all (-1)", "N", "Sampling");
}

Backend backend_option(const std::string& text, std::vector<Diagnostic>& defects) {
  if (text != "auto" && text != "cpu" && text != "cuda")
    defects.push_back({"--backend " + printable(text), "must be auto, cpu or cuda", ""});
  else if (text == "cuda" && !cuda_is_there())
    defects.push_back(
        {"--backend cuda",
         build_info().cuda ? "this host has no GPU" : "this binary was built without it",
         "must be cpu"});
  else if (text == "cuda" || (text == "auto" && cuda_is_there()))
    return Backend::cuda;
  return Backend::cpu;
}

LocalModel ModelOptions::model(std::vector<Diagnostic>& defects) const {
  LocalModel model;
  std::string backend = backend_.empty() ? "auto" : backend_;
  model.dir = model_;
  if (model_.empty()) {
    try {
      const Profile profile = read_profile(find_profile(profile_));
      if (profile.paths.model_root)
        model.dir = *profile.paths.model_root;
      else
        defects.push_back({"--model", "missing", profile.file.string() + " names no model either"});
      if (backend_.empty()) backend = profile.requirements.backend;
    } catch (const InputError& error) {
      defects.insert(defects.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  } else if (!profile_.empty()) {
    defects.push_back({"--profile", "must not stand beside --model", ""});
  }
  model.backend = backend_option(backend, defects);
  model.threads =
      threads_.empty()
          ? std::max(1, host_facts().cores)
          : static_cast<int>(integer_option("--threads", threads_, 1, kMaxThreads, defects));
  return model;
}

SamplingParams ModelOptions::sampling(std::vector<Diagnostic>& defects) const {
  SamplingParams s;
  s.temperature = checked(
      "--temperature", temperature_,
      [](double t) { return t == 0 || (t >= kMinTemperature && t <= kMaxTemperature); },
      "0 (greedy) or a number from 1e-6 to 1000", defects);
  s.top_p = checked(
      "--top-p", top_p_, [](double p) { return p >= kMinTopP && p <= 1; },
      "a number above 0 and at most 1", defects);
  s.top_k = static_cast<int32_t>(integer_option("--top-k", top_k_, -1, kMaxTopK, defects));
  if (s.top_k == 0) defects.push_back({"--top-k 0", "must be -1 (all) or at least 1", ""});
  return s;
}

}  // namespace rlk
