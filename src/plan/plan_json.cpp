// plan.json (`rlk.plan.v1`, docs/formats.md): the Plan as text and back.

#include "rlk/base/json_reader.h"
#include "rlk/base/text.h"
#include "rlk/plan/plan.h"

namespace rlk {
namespace {

constexpr char kSchema[] = "rlk.plan.v1";
constexpr int64_t kAny = INT64_MAX;
constexpr double kHuge = 1e300;

// A float as the shortest decimal that gives it back, not as the double it widens to.
Json shortest(float value) {
  return *parse_number(format_number(value));
}

const char* strictness(bool strict) {
  return strict ? "strict" : "native";
}

Json topology_json(const Topology& t) {
  return {{"ranks", t.ranks},
          {"tp", t.tp},
          {"cp", t.cp},
          {"rollout_tp", t.rollout_tp},
          {"rollout_cp", t.rollout_cp},
          {"engines", t.engines()}};
}

Json algorithm_json(const Plan& plan) {
  const Options& o = plan.options;
  return {{"name", "grpo"},
          {"loss_aggregation", o.token_mean ? "token-mean" : "sample-mean"},
          {"eps_clip", o.eps_clip},
          {"kl_coef", o.kl_coef},
          {"kl_estimator", o.kl_estimator},
          {"std_normalization", o.std_normalization},
          {"global_batch_size", o.global_batch_size},
          {"super_batch_tokens", plan.super_batch_tokens},
          {"lr", o.lr},
          {"weight_decay", o.weight_decay},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"adam_eps", o.adam_eps},
          {"clip_grad", o.clip_grad}};
}

Json execution_json(const Plan& plan) {
  const Options& o = plan.options;
  return {{"threads", o.threads},
          {"ranks_per_gpu", plan.ranks_per_gpu},
          {"max_tokens_per_gpu", o.max_tokens_per_gpu},
          {"page_size", plan.page_size},
          {"kv_pages", plan.kv_pages},
          {"max_running", plan.max_running},
          {"arena_bytes", plan.arena_bytes},
          {"gpu_memory_utilization", o.gpu_memory_utilization},
          {"trace_ops", o.trace_ops},
          {"save_interval", o.save_interval}};
}

Json model_json(const ModelConfig& m) {
  return {{"vocab", m.vocab},
          {"padded_vocab", m.padded_vocab()},
          {"D", m.D},
          {"F", m.F},
          {"L", m.L},
          {"H", m.H},
          {"KH", m.KH},
          {"Dh", m.Dh},
          {"max_position", m.max_position},
          {"rms_eps", shortest(m.rms_eps)},
          {"rope_theta", m.rope_theta},
          {"tied", m.tied},
          {"eos", m.eos},
          {"pad", m.pad}};
}

Json slices_json(Topology::Range r) {
  return {r.first, r.first + r.count};
}

Json rank_json(const Plan& plan, int rank) {
  const Topology& t = plan.options.topology;
  Json json = {{"rank", rank},
               {"tp_index", t.tp_index(rank)},
               {"cp_index", t.cp_index(rank)},
               {"tp_group", t.tp_group(rank)},
               {"cp_group", t.cp_group(rank)},
               {"train_slices", slices_json(t.train_slices(rank))},
               {"cp_slices", slices_json(t.cp_slices(rank))},
               {"engine", t.engine(rank)},
               {"rollout_tp_index", t.rollout_tp_index(rank)},
               {"rollout_cp_index", t.rollout_cp_index(rank)},
               {"rollout_tp_group", t.rollout_tp_group(rank)},
               {"engine_group", t.engine_group(rank)},
               {"rollout_slices", slices_json(t.rollout_slices(rank))}};
  if (plan.options.backend == Backend::cuda) json["device"] = plan.device(rank);
  json["argv"] = worker_argv(plan, rank);
  json["environment"] = Json(Json::value_t::object);
  for (const auto& [name, value] : worker_environment(plan, rank))
    json["environment"][name] = value;
  return json;
}

void read_topology(JsonReader json, Topology& t) {
  const auto size = [&](const char* key, int& value) {
    int64_t n = value;
    if (json.integer(key, 1, 8, n) && (n & (n - 1)) != 0)
      json.fail(key, std::to_string(n), "must be 1, 2, 4 or 8");
    value = static_cast<int>(n);
  };
  size("ranks", t.ranks);
  size("tp", t.tp);
  size("cp", t.cp);
  size("rollout_tp", t.rollout_tp);
  size("rollout_cp", t.rollout_cp);
  if (t.tp * t.cp != t.ranks || t.rollout_tp * t.rollout_cp > t.ranks)
    json.fail("ranks", std::to_string(t.ranks),
              "must be tp x cp, and a multiple of rollout_tp x rollout_cp");
}

void read_float(JsonReader& json, const char* key, double min, double max, float& value) {
  double number = value;
  json.number(key, min, max, number);
  value = static_cast<float>(number);
}

template <class Int>
void read_int(JsonReader& json, const char* key, int64_t min, int64_t max, Int& value) {
  auto number = static_cast<int64_t>(value);
  json.integer(key, min, max, number);
  value = static_cast<Int>(number);
}

void read_seed(JsonReader& json, const char* key, uint64_t& value) {
  const Json* found = json.find(key);
  if (found == nullptr) return;
  if (found->is_number_unsigned())
    value = found->get<uint64_t>();
  else
    json.fail(key, shown(*found), "must be an unsigned integer");
}

void read_modules(JsonReader json, Options& o) {
  const auto strict = [&](const char* key, bool& value) {
    std::string text;
    if (json.one_of(key, {"strict", "native"}, text)) value = text == "strict";
  };
  strict("attention", o.strict_attention);
  strict("ffn", o.strict_ffn);
  strict("logp", o.strict_logp);
}

void read_sampling(JsonReader json, Options& o) {
  read_float(json, "temperature", 0, kHuge, o.temperature);
  read_float(json, "top_p", 0, 1, o.top_p);
  read_int(json, "top_k", -1, INT32_MAX, o.top_k);
  json.integer("max_response_len", 1, kAny, o.max_response_len);
  json.integer("rollout_batch_size", 1, kAny, o.rollout_batch_size);
  json.integer("samples_per_prompt", 1, kAny, o.samples_per_prompt);
}

void read_algorithm(JsonReader json, Plan& plan) {
  Options& o = plan.options;
  std::string text;
  json.one_of("name", {"grpo"}, text);
  if (json.one_of("loss_aggregation", {"sample-mean", "token-mean"}, text))
    o.token_mean = text == "token-mean";
  json.number("eps_clip", 0, kHuge, o.eps_clip);
  json.number("kl_coef", 0, kHuge, o.kl_coef);
  read_int(json, "kl_estimator", 1, 3, o.kl_estimator);
  json.boolean("std_normalization", o.std_normalization);
  json.integer("global_batch_size", 1, kAny, o.global_batch_size);
  json.integer("super_batch_tokens", 1, kAny, plan.super_batch_tokens);
  json.number("lr", 0, kHuge, o.lr);
  json.number("weight_decay", 0, kHuge, o.weight_decay);
  json.number("beta1", 0, 1, o.beta1);
  json.number("beta2", 0, 1, o.beta2);
  json.number("adam_eps", 0, kHuge, o.adam_eps);
  json.number("clip_grad", 0, kHuge, o.clip_grad);
}

void read_execution(JsonReader json, Plan& plan) {
  Options& o = plan.options;
  read_int(json, "threads", 1, INT32_MAX, o.threads);
  read_int(json, "ranks_per_gpu", 1, 8, plan.ranks_per_gpu);
  json.integer("max_tokens_per_gpu", 1, kAny, o.max_tokens_per_gpu);
  read_int(json, "page_size", 1, INT32_MAX, plan.page_size);
  json.integer("kv_pages", 1, kAny, plan.kv_pages);
  json.integer("max_running", 1, kAny, plan.max_running);
  read_int(json, "arena_bytes", 0, kAny, plan.arena_bytes);
  json.number("gpu_memory_utilization", 0, 1, o.gpu_memory_utilization);
  json.boolean("trace_ops", o.trace_ops);
  json.integer("save_interval", 0, kAny, o.save_interval);
}

void read_model(JsonReader json, ModelConfig& m) {
  json.integer("vocab", 1, INT32_MAX, m.vocab);
  json.integer("D", 1, kAny, m.D);
  json.integer("F", 1, kAny, m.F);
  json.integer("L", 1, kAny, m.L);
  json.integer("H", 1, kAny, m.H);
  json.integer("KH", 1, kAny, m.KH);
  json.integer("Dh", 1, kAny, m.Dh);
  json.integer("max_position", 1, kAny, m.max_position);
  read_float(json, "rms_eps", 0, 1, m.rms_eps);
  json.number("rope_theta", 0, kHuge, m.rope_theta);
  json.boolean("tied", m.tied);
  read_int(json, "pad", -1, INT32_MAX, m.pad);
  const Json* eos = json.find("eos");
  if (eos == nullptr) return;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      return json.fail("eos", shown(id), "must be token ids");
    m.eos.push_back(id.get<int32_t>());
  }
}

Json synthetic_json(const std::optional<SyntheticModel>& s) {
  if (!s) return nullptr;
  return {{"shape", s->shape}, {"seed", s->seed}, {"prompt_tokens", s->prompt_tokens}};
}

void read_synthetic(JsonReader& model, Plan& plan) {
  if (model.find("synthetic", JsonReader::Key::optional) == nullptr) return;
  JsonReader json = model.object("synthetic");
  SyntheticModel& s = plan.synthetic.emplace();
  json.string("shape", s.shape);
  read_seed(json, "seed", s.seed);
  json.integer("prompt_tokens", 1, kAny, s.prompt_tokens);
}

void read_data(JsonReader json, Plan& plan) {
  std::string path;
  json.string("path", path);
  plan.prompt_data = path;
  json.string("sha256", plan.task.data_sha256, JsonReader::Key::optional);
  json.string("reward", plan.task.reward);
  json.string("prompt_key", plan.task.prompt_key);
  json.string("label_key", plan.task.label_key);
  json.boolean("chat_template", plan.task.chat_template);
  json.boolean("thinking", plan.task.thinking);
}

void read_memory(JsonReader json, Plan& plan) {
  for (const auto& [item, value] : json.value().items()) {
    int64_t bytes = 0;
    if (json.integer(item, 0, kAny, bytes)) plan.memory[item] = static_cast<uint64_t>(bytes);
  }
}

}  // namespace

std::vector<std::string> worker_argv(const Plan& plan, int rank) {
  return {"rlk",    "worker",
          "--plan", (plan.run_dir / "plan.json").string(),
          "--rank", std::to_string(rank)};
}

std::map<std::string, std::string> worker_environment(const Plan& plan, int) {
  std::map<std::string, std::string> environment;
  // Device r of the plan is the r-th GPU on the bus, as nvidia-smi counts them, not the r-th
  // fastest.
  if (plan.options.backend == Backend::cuda) environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  return environment;
}

std::string plan_to_json(const Plan& plan) {
  const Options& o = plan.options;
  Json json;
  json["schema"] = kSchema;
  json["run_id"] = plan.run_id;
  json["command"] = o.command == Command::verify ? "verify" : "run";
  json["profile"] = plan.profile_name;
  json["backend"] = o.backend == Backend::cpu ? "cpu" : "cuda";
  json["mode"] = o.consistency ? "consistency" : "native";
  json["modules"] = {{"attention", strictness(o.strict_attention)},
                     {"ffn", strictness(o.strict_ffn)},
                     {"logp", strictness(o.strict_logp)}};
  json["steps"] = o.steps;
  json["topology"] = topology_json(o.topology);
  json["sampling"] = {{"temperature", shortest(o.temperature)},
                      {"top_p", shortest(o.top_p)},
                      {"top_k", o.top_k},
                      {"max_response_len", o.max_response_len},
                      {"rollout_batch_size", o.rollout_batch_size},
                      {"samples_per_prompt", o.samples_per_prompt}};
  json["seeds"] = {{"seed", o.seed}, {"rollout_seed", o.rollout_seed}};
  json["algorithm"] = algorithm_json(plan);
  json["execution"] = execution_json(plan);
  json["model"] = {
      {"root", plan.model_root.string()},
      {"ref_load", plan.ref_load.empty() ? Json(nullptr) : Json(plan.ref_load.string())},
      {"synthetic", synthetic_json(plan.synthetic)},
      {"config", model_json(plan.model)}};
  json["data"] = {
      {"path", plan.prompt_data.string()},
      {"sha256", plan.task.data_sha256.empty() ? Json(nullptr) : Json(plan.task.data_sha256)},
      {"reward", plan.task.reward},
      {"prompt_key", plan.task.prompt_key},
      {"label_key", plan.task.label_key},
      {"chat_template", plan.task.chat_template},
      {"thinking", plan.task.thinking}};
  json["output_root"] = plan.output_root.string();
  json["run_dir"] = plan.run_dir.string();
  json["memory"] = Json(Json::value_t::object);
  for (const auto& [item, bytes] : plan.memory) json["memory"][item] = bytes;
  json["ranks"] = Json::array();
  for (int rank = 0; rank < o.topology.ranks; ++rank)
    json["ranks"].push_back(rank_json(plan, rank));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Plan plan_from_json(const std::string& text) {
  const Json root = parse_json(text, "plan.json");
  std::vector<Diagnostic> defects;
  JsonReader json(root, "plan.json", "", defects);
  Plan plan;
  Options& o = plan.options;
  std::string word;
  json.one_of("schema", {kSchema}, word);
  json.string("run_id", plan.run_id);
  if (json.one_of("command", {"verify", "run"}, word))
    o.command = word == "verify" ? Command::verify : Command::run;
  json.string("profile", plan.profile_name);
  if (json.one_of("backend", {"cpu", "cuda"}, word))
    o.backend = word == "cpu" ? Backend::cpu : Backend::cuda;
  if (json.one_of("mode", {"consistency", "native"}, word)) o.consistency = word == "consistency";
  read_modules(json.object("modules"), o);
  json.integer("steps", 1, kAny, o.steps);
  read_topology(json.object("topology"), o.topology);
  read_sampling(json.object("sampling"), o);
  JsonReader seeds = json.object("seeds");
  read_seed(seeds, "seed", o.seed);
  read_seed(seeds, "rollout_seed", o.rollout_seed);
  read_algorithm(json.object("algorithm"), plan);
  read_execution(json.object("execution"), plan);
  JsonReader model = json.object("model");
  std::string path;
  if (model.string("root", path)) plan.model_root = path;
  if (model.string("ref_load", path, JsonReader::Key::optional)) plan.ref_load = path;
  read_synthetic(model, plan);
  read_model(model.object("config"), plan.model);
  read_data(json.object("data"), plan);
  if (json.string("output_root", path)) plan.output_root = path;
  if (json.string("run_dir", path)) plan.run_dir = path;
  read_memory(json.object("memory"), plan);
  json.find("ranks");  // derived from all of the above
  json.refuse_unknown_keys();
  if (!defects.empty()) throw InputError(std::move(defects));
  return plan;
}

}  // namespace rlk
