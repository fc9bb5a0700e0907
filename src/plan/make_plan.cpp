#include "rlk/plan/make_plan.h"

#include <algorithm>

#include "option_values.h"
#include "rlk/base/file.h"
#include "rlk/base/sha256.h"
#include "rlk/base/text.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

// Bounds that keep products of sizes inside int64; the real limits are the model's and the memory
// plan's.
constexpr int64_t kMaxSteps = 1'000'000;  // file names hold six digits
constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxPrompts = 1 << 16;
constexpr int64_t kMaxSamples = 1 << 12;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxThreads = 1024;
constexpr double kMinTemperature = 1e-6, kMaxTemperature = 1000;  // 1/T times a logit is finite
constexpr size_t kMaxRunId = 128;

class Maker {
 public:
  explicit Maker(const PlanInputs& inputs)
      : in_(inputs), defects_(inputs.defects), values_(inputs, defects_) {}

  Plan make() {
    plan_.options.command = in_.command;
    sampling();
    sizes();
    algorithm();
    execution();
    modules();
    run_id();
    topology();
    if (!in_.profile) throw InputError(defects_);
    backend();
    task();
    paths();
    model();
    if (in_.starting) inputs_are_there();
    if (defects_.empty()) plan_memory(plan_, gpu_memory(), defects_);
    if (!defects_.empty()) throw InputError(defects_);
    return plan_;
  }

 private:
  bool verify() const { return in_.command == Command::verify; }
  void fail(std::string where, std::string what, std::string fix = "") {
    defects_.push_back({std::move(where), std::move(what), std::move(fix)});
  }

  void sampling();
  void sizes();
  void algorithm();
  void execution();
  void modules();
  void run_id();
  void backend();
  void topology();
  void task();
  void paths();
  void model();
  void check_synthetic();
  void inputs_are_there();
  void gpus_are_there();
  void reference_fits();
  uint64_t gpu_memory() const;

  const PlanInputs& in_;
  std::vector<Diagnostic> defects_;
  OptionValues values_;
  Plan plan_;
};

void Maker::sampling() {
  Options& o = plan_.options;
  const double temperature = values_.number("temperature", 0, kMaxTemperature, 1.0);
  o.temperature = static_cast<float>(temperature);
  if (temperature > 0 && temperature < kMinTemperature)
    values_.fail("temperature", "must be 0 (greedy) or from " + format_number(kMinTemperature) +
                                    " to " + format_number(kMaxTemperature));
  o.top_p = static_cast<float>(values_.number("top-p", 0, 1, 1.0, true));
  if (o.top_p == 0) values_.fail("top-p", "is 0 as a 32-bit number; must be above 0, at most 1");
  o.top_k = static_cast<int32_t>(values_.integer("top-k", -1, kMaxTokens, -1));
  if (o.top_k == 0) values_.fail("top-k", "must be -1 (all) or at least 1");
  o.max_response_len = values_.integer("max-response-len", 1, kMaxTokens, verify() ? 512 : 7168);
  o.seed = values_.seed("seed", 1234);
  o.rollout_seed = values_.seed("rollout-seed", 1234);
}

void Maker::sizes() {
  Options& o = plan_.options;
  o.steps = values_.integer("steps", 1, kMaxSteps - 1, verify() ? 2 : 200);
  o.rollout_batch_size = values_.integer("rollout-batch-size", 1, kMaxPrompts, 1);
  o.samples_per_prompt = values_.integer("samples-per-prompt", 1, kMaxSamples, 8);
  const int64_t samples = o.rollout_batch_size * o.samples_per_prompt;
  if (samples > kMaxBatch)
    values_.fail("rollout-batch-size", "makes " + std::to_string(samples) +
                                           " samples a step; must be at most " +
                                           std::to_string(kMaxBatch));
  o.global_batch_size = values_.integer("global-batch-size", 1, kMaxBatch, samples);
  if (samples % o.global_batch_size != 0)
    values_.fail("global-batch-size",
                 "must divide the " + std::to_string(samples) + " samples of a step");
}

void Maker::algorithm() {
  Options& o = plan_.options;
  o.lr = values_.number("lr", 0, 1, 5e-7);
  o.weight_decay = values_.number("weight-decay", 0, 1, 0.1);
  o.kl_coef = values_.number("kl-coef", 0, 1000, verify() ? 0.01 : 0.0);
  o.eps_clip = values_.number("eps-clip", 0, 1, 0.2, true);
  o.token_mean = values_.choice("loss-aggregation", {"sample-mean", "token-mean"}, 0) == 1;
  o.kl_estimator = static_cast<int>(values_.choice("kl-estimator", {"k1", "k2", "k3"}, 2)) + 1;
  o.std_normalization = values_.choice("grpo-std-normalization", {"enabled", "disabled"}, 0) == 0;
}

void Maker::execution() {
  Options& o = plan_.options;
  const OptionValue* save = values_.find("save-interval");
  if (save != nullptr && save->text == "off")
    o.save_interval = 0;
  else
    o.save_interval = values_.integer("save-interval", 0, kMaxSteps, 0);
  o.max_tokens_per_gpu = values_.integer("max-tokens-per-gpu", 1, kMaxTokens, 0);
  o.gpu_memory_utilization = values_.number("gpu-memory-utilization", 0, 1, 0, true);
  o.trace_ops = values_.flag("trace-ops");
  values_.choice("launcher", {"local"}, 0);
}

// The mode decides all three modules; --modules or --group decide them one by one, and then the
// mode, unless it was given as well.
void Maker::modules() {
  Options& o = plan_.options;
  o.consistency = values_.choice("mode", {"consistency", "native"}, 0) == 0;
  std::map<std::string, bool*> strict = {
      {"attention", &o.strict_attention}, {"ffn", &o.strict_ffn}, {"logp", &o.strict_logp}};
  for (const auto& [name, value] : strict) *value = o.consistency;

  std::string chosen = values_.source("modules") >= values_.source("group") ? "modules" : "group";
  const OptionValue* value = values_.find(chosen);
  if (value == nullptr) return;
  if (values_.source("modules") == values_.source("group"))
    return values_.fail("modules", "must not stand beside " + values_.where("group"));
  if (chosen == "group") {
    const std::string& bits = value->text;
    if (bits.size() != 4 || bits[0] != 'M' || bits.find_first_not_of("01", 1) != std::string::npos)
      return values_.fail(
          "group", "must be M and three bits (attention, FFN, logp; 1 = strict), M000 to M111");
    o.strict_attention = bits[1] == '1';
    o.strict_ffn = bits[2] == '1';
    o.strict_logp = bits[3] == '1';
  } else {
    std::string_view rest = value->text;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
      const size_t equals = item.find('=');
      const auto module = strict.find(std::string(item.substr(0, equals)));
      const std::string_view kind = equals == item.npos ? "" : item.substr(equals + 1);
      if (module == strict.end() || (kind != "strict" && kind != "native"))
        return values_.fail("modules",
                            "must be a list like attention=strict,ffn=native,logp=strict");
      *module->second = kind == "strict";
    }
  }
  const bool all = o.strict_attention && o.strict_ffn && o.strict_logp;
  if (values_.find("mode") == nullptr)
    o.consistency = all;
  else if (o.consistency && !all)
    values_.fail(chosen, "needs --mode native: consistency mode runs strict modules alone");
}

void Maker::run_id() {
  const OptionValue* value = values_.find("run-id");
  plan_.run_id = value == nullptr ? in_.default_run_id : value->text;
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto allowed = [&](char c) { return letter(c) || c == '.' || c == '_' || c == '-'; };
  const std::string& id = plan_.run_id;
  if (value != nullptr && (id.empty() || id.size() > kMaxRunId || !letter(id.front()) ||
                           !std::all_of(id.begin(), id.end(), allowed)))
    values_.fail("run-id",
                 "must be at most " + std::to_string(kMaxRunId) +
                     " letters, digits, '.', '_' and '-', starting with a letter or digit");
}

void Maker::backend() {
  const size_t from_profile = in_.profile->requirements.backend == "cpu"    ? 1
                              : in_.profile->requirements.backend == "cuda" ? 2
                                                                            : 0;
  size_t backend = values_.choice("backend", {"auto", "cpu", "cuda"}, from_profile);
  if (backend == 0) backend = in_.host.cuda_built && !in_.host.gpus.empty() ? 2 : 1;
  plan_.options.backend = backend == 2 ? Backend::cuda : Backend::cpu;
  plan_.ranks_per_gpu = in_.profile->ranks_per_gpu;
  // One key tile a page where a copy engine moves it; small pages where prompts are short (bits do
  // not depend on it).
  plan_.page_size = plan_.options.backend == Backend::cuda ? 128 : 16;
  if (plan_.options.backend == Backend::cuda && in_.starting) gpus_are_there();
  const Options& o = plan_.options;
  const bool strict = o.strict_attention && o.strict_ffn && o.strict_logp;
  const bool cut = o.topology.tp > 1 || o.topology.rollout_tp > 1;
  if (o.backend == Backend::cuda && !strict && cut && plan_.ranks_per_gpu > 1)
    fail(in_.profile->file.string() + ": ranks_per_gpu",
         std::to_string(plan_.ranks_per_gpu) +
             " ranks share a GPU, and native modules sum over TP ranks by NCCL, which refuses that",
         "must be 1, or --tp 1 --rollout-tp 1 with all ranks in --cp and --rollout-cp");
}

void Maker::gpus_are_there() {
  const Profile::Requirements& need = in_.profile->requirements;
  const std::string file = in_.profile->file.string();
  if (!in_.host.cuda_built)
    return fail(values_.where("backend"), "this binary was built without CUDA", "must be cpu");
  const int gpus = (need.ranks + plan_.ranks_per_gpu - 1) / plan_.ranks_per_gpu;
  if (static_cast<int>(in_.host.gpus.size()) < gpus)
    return fail(file + ": requirements.ranks", std::to_string(need.ranks) + " ranks need " +
                                                   std::to_string(gpus) + " GPUs, this host has " +
                                                   std::to_string(in_.host.gpus.size()));
  for (const HostFacts::Gpu& gpu : in_.host.gpus) {
    const bool known =
        need.gpu_models.empty() ||
        std::any_of(need.gpu_models.begin(), need.gpu_models.end(),
                    [&](const auto& model) { return gpu.name.find(model) != std::string::npos; });
    if (!known) fail(file + ": requirements.gpu_models", "this host has " + printable(gpu.name));
    const double gib = static_cast<double>(gpu.memory_bytes) / (1 << 30);
    // What a driver reports is a little less than what is printed on the box.
    constexpr double kReported = 0.97;
    if (gib < need.gpu_memory_gib * kReported)
      fail(file + ": requirements.gpu_memory_gib",
           gpu.name + " has " + format_bytes(gpu.memory_bytes));
  }
}

void Maker::topology() {
  Topology& t = plan_.options.topology;
  if (in_.profile) t.ranks = in_.profile->requirements.ranks;
  // A cp that stands behind the given tp was meant for another one.
  const bool cp_given =
      values_.find("cp") != nullptr && values_.source("cp") >= values_.source("tp");
  if (cp_given && values_.find("tp") == nullptr) {
    t.cp = values_.power_of_two("cp", t.ranks, 1);
    t.tp = t.ranks / t.cp;
  } else {
    t.tp = values_.power_of_two("tp", t.ranks, std::min(4, t.ranks));
    t.cp = cp_given ? values_.power_of_two("cp", t.ranks, t.ranks / t.tp) : t.ranks / t.tp;
  }
  if (in_.profile && t.tp * t.cp != t.ranks)
    values_.fail("cp", "times " + values_.where("tp") + " must be the " + std::to_string(t.ranks) +
                           " ranks of the profile");
  t.rollout_tp = values_.power_of_two("rollout-tp", t.ranks, std::min(4, t.ranks));
  t.rollout_cp = values_.power_of_two("rollout-cp", t.ranks, 1);
  if (in_.profile && t.rollout_tp * t.rollout_cp > t.ranks)
    values_.fail("rollout-cp", "times " + values_.where("rollout-tp") + " must divide the " +
                                   std::to_string(t.ranks) + " ranks of the profile");
  plan_.options.threads = static_cast<int>(
      values_.integer("threads", 1, kMaxThreads, std::max(1, in_.host.cores / t.ranks)));
}

void Maker::task() {
  const Profile::TaskSpec& from = in_.profile->task;
  plan_.task = {from.reward,        from.prompt_key, from.label_key,
                from.chat_template, from.thinking,   from.prompt_data_sha256};
  plan_.profile_name = in_.profile->name;
  plan_.synthetic = in_.profile->synthetic;
}

void Maker::paths() {
  const Profile::Paths& from = in_.profile->paths;
  const auto pick = [&](const char* option, const std::optional<fs::path>& other) {
    const auto given = values_.path(option);
    return given ? given : other;
  };
  const auto workspace = pick("workspace", from.workspace);
  auto output_root = pick("output-root", from.output_root);
  if (!output_root && workspace) output_root = *workspace / "runs";
  const auto need = [&](const char* option, const char* key, const std::optional<fs::path>& value) {
    if (!value)
      fail(std::string("--") + option, "missing",
           "needed here or as paths." + std::string(key) + " of " + in_.profile->file.string());
    return value.value_or(fs::path());
  };
  const auto model_root = pick("model-root", from.model_root),
             prompt_data = pick("prompt-data", from.prompt_data),
             ref_load = pick("ref-load", from.ref_load);
  plan_.output_root = need("output-root", "output_root", output_root);
  plan_.run_dir = plan_.output_root / plan_.run_id;
  if (!plan_.synthetic) {
    plan_.model_root = need("model-root", "model_root", model_root);
    plan_.prompt_data = need("prompt-data", "prompt_data", prompt_data);
    plan_.ref_load = ref_load.value_or(fs::path());
    return;
  }
  for (const auto& [option, path] :
       {std::pair("model-root", model_root), {"prompt-data", prompt_data}, {"ref-load", ref_load}})
    if (path)
      fail(values_.where(option), path->string() + " stands beside model.source \"synthetic\"",
           "a synthetic model has no files");
}

void Maker::model() {
  const Profile& from = *in_.profile;
  if (!plan_.synthetic && plan_.model_root.empty()) return;
  try {
    // A plan alone can be made where the model is not.
    const bool absent =
        !in_.starting && !from.shape.empty() && !is_there(plan_.model_root / "config.json");
    plan_.model = plan_.synthetic || absent
                      ? model_of_shape(from.shape, from.file.string() + ": model.shape")
                      : read_model_config(plan_.model_root);
  } catch (const InputError& error) {
    defects_.insert(defects_.end(), error.diagnostics().begin(), error.diagnostics().end());
    return;
  }
  if (plan_.synthetic) check_synthetic();
  const ModelConfig& m = plan_.model;
  if (plan_.options.top_k > m.vocab)
    values_.fail("top-k", "must be -1 or from 1 to the vocabulary's " + std::to_string(m.vocab));
  if (plan_.options.max_response_len >= m.max_position)
    values_.fail("max-response-len", "leaves no room for a prompt: must be less than the model's " +
                                         std::to_string(m.max_position) + " positions");
}

void Maker::check_synthetic() {
  const std::string file = in_.profile->file.string();
  const int64_t prompt = plan_.synthetic->prompt_tokens,
                room = plan_.model.max_position - plan_.options.max_response_len;
  if (plan_.model.max_position > 0 && prompt > room)
    fail(file + ": model.prompt_tokens", std::to_string(prompt),
         "with the longest response it must fit the model's " +
             std::to_string(plan_.model.max_position) + " positions");
  if (plan_.task.reward != "synthetic-hash")
    fail(file + ": task.reward", "\"" + printable(plan_.task.reward) + "\"",
         "a synthetic model writes no text: must be \"synthetic-hash\"");
}

void Maker::inputs_are_there() {
  std::error_code ignored;
  if (!plan_.output_root.empty() && fs::exists(plan_.run_dir, ignored))
    fail(values_.where("run-id"), plan_.run_dir.string() + " exists", "a run id is never reused");
  if (plan_.synthetic) return;
  if (!plan_.prompt_data.empty() && !fs::is_regular_file(plan_.prompt_data, ignored))
    fail(plan_.prompt_data.string(), "no such file",
         "must hold the prompts, one JSON object a line");
  else if (!plan_.task.data_sha256.empty() &&
           hex(sha256_file(plan_.prompt_data)) != plan_.task.data_sha256)
    fail(in_.profile->file.string() + ": task.prompt_data_sha256",
         plan_.prompt_data.string() + " has another hash", "must be its SHA-256, or null");
  if (plan_.model_root.empty() || !fs::is_directory(plan_.model_root, ignored)) return;
  if (!fs::exists(plan_.model_root / "model.safetensors", ignored) &&
      !fs::exists(plan_.model_root / "model.safetensors.index.json", ignored))
    fail(plan_.model_root.string(), "no model.safetensors and no model.safetensors.index.json");
  if (!fs::exists(plan_.model_root / "tokenizer.json", ignored))
    fail(plan_.model_root.string(), "no tokenizer.json");
  if (!plan_.ref_load.empty()) reference_fits();
}

void Maker::reference_fits() {
  try {
    const ModelConfig ref = read_model_config(plan_.ref_load);
    const ModelConfig& m = plan_.model;
    const auto same = [](const ModelConfig& a, const ModelConfig& b) {
      return a.vocab == b.vocab && a.D == b.D && a.F == b.F && a.L == b.L && a.H == b.H &&
             a.KH == b.KH && a.Dh == b.Dh && a.tied == b.tied;
    };
    if (m.D > 0 && !same(ref, m))
      fail(values_.where("ref-load"), "another shape than " + plan_.model_root.string(),
           "the reference must have the model's dimensions");
  } catch (const InputError& error) {
    defects_.insert(defects_.end(), error.diagnostics().begin(), error.diagnostics().end());
  }
}

// Of the smallest GPU here; of the profile's requirement where the host has none.
uint64_t Maker::gpu_memory() const {
  if (plan_.options.backend == Backend::cpu) return 0;
  if (in_.host.gpus.empty())
    return static_cast<uint64_t>(in_.profile->requirements.gpu_memory_gib * (1 << 30));
  const auto less = [](const HostFacts::Gpu& a, const HostFacts::Gpu& b) {
    return a.memory_bytes < b.memory_bytes;
  };
  return std::min_element(in_.host.gpus.begin(), in_.host.gpus.end(), less)->memory_bytes;
}

}  // namespace

Plan make_plan(const PlanInputs& inputs) {
  return Maker(inputs).make();
}

}  // namespace rlk
