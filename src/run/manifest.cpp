#include "manifest.h"

#include <charconv>
#include <cstdlib>

#include "rlk/base/sha256.h"
#include "rlk/run/inventory.h"
#include "rlk/run/manifest_digest.h"

namespace rlk {
namespace {

// The shortest decimal that reads back as `x`: 0.7, not 0.699999988079071.
double shortest(float x) {
  char text[32];
  *std::to_chars(text, text + sizeof text - 1, x).ptr = '\0';
  return std::strtod(text, nullptr);
}

Json modules(const Options& o) {
  const auto kind = [](bool strict) { return strict ? "strict" : "native"; };
  return {{"attention", kind(o.strict_attention)},
          {"ffn", kind(o.strict_ffn)},
          {"logp", kind(o.strict_logp)}};
}

Json topology(const Topology& t) {
  return {{"ranks", t.ranks},
          {"tp", t.tp},
          {"cp", t.cp},
          {"rollout_tp", t.rollout_tp},
          {"rollout_cp", t.rollout_cp},
          {"engines", t.engines()}};
}

Json sampling(const Options& o) {
  return {{"temperature", shortest(o.temperature)},
          {"top_p", shortest(o.top_p)},
          {"top_k", o.top_k},
          {"max_response_len", o.max_response_len},
          {"rollout_batch_size", o.rollout_batch_size},
          {"samples_per_prompt", o.samples_per_prompt}};
}

Json algorithm(const Plan& plan) {
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

Json execution(const Plan& plan) {
  const Options& o = plan.options;
  return {{"threads", o.threads},
          {"max_tokens_per_gpu", o.max_tokens_per_gpu},
          {"page_size", plan.page_size},
          {"kv_pages", plan.kv_pages},
          {"max_running", plan.max_running},
          {"gpu_memory_utilization", o.gpu_memory_utilization},
          {"trace_ops", o.trace_ops},
          {"save_interval", o.save_interval}};
}

Json model(const Plan& plan, const ManifestInputs& inputs) {
  const ModelConfig& c = plan.model;
  Json files = Json::object();
  for (const auto& [name, digest] : inputs.model_files) files[name] = digest;
  Json synthetic;
  if (const auto& s = plan.synthetic)
    synthetic = {{"shape", s->shape}, {"seed", s->seed}, {"prompt_tokens", s->prompt_tokens}};
  return {{"root", plan.model_root.string()},
          {"synthetic", std::move(synthetic)},
          {"ref_load", plan.ref_load.empty() ? Json() : Json(plan.ref_load.string())},
          {"config",
           {{"vocab", c.vocab},
            {"padded_vocab", c.padded_vocab()},
            {"hidden", c.D},
            {"ffn", c.F},
            {"layers", c.L},
            {"heads", c.H},
            {"kv_heads", c.KH},
            {"head_dim", c.Dh},
            {"rms_eps", shortest(c.rms_eps)},
            {"rope_theta", c.rope_theta},
            {"tied", c.tied},
            {"eos", c.eos}}},
          {"files", std::move(files)}};
}

Json data(const Plan& plan, const ManifestInputs& inputs) {
  return {{"path", plan.prompt_data.string()},
          {"sha256", plan.synthetic ? Json() : Json(inputs.data_sha256)},
          {"reward", plan.task.reward},
          {"prompt_key", plan.task.prompt_key},
          {"label_key", plan.task.label_key},
          {"chat_template", plan.task.chat_template}};
}

}  // namespace

std::string manifest_digest(Json manifest) {
  manifest.erase("digest");
  const std::string text = manifest.dump();
  return hex(sha256(text.data(), text.size()));
}

Json make_manifest(const Plan& plan, const std::string& plan_json, const ManifestInputs& inputs) {
  const Options& o = plan.options;
  Json m;
  m["schema"] = "rlk.manifest.v1";
  m["run_id"] = plan.run_id;
  m["command"] = o.command == Command::verify ? "verify" : "run";
  m["profile"] = plan.profile_name;
  m["status"] = run_status_name(RunStatus::running);
  m["message"] = "";
  m["started"] = utc_now();
  m["ended"] = nullptr;
  m["backend"] = o.backend == Backend::cpu ? "cpu" : "cuda";
  m["mode"] = o.consistency ? "consistency" : "native";
  m["modules"] = modules(o);
  m["steps"] = o.steps;
  m["topology"] = topology(o.topology);
  m["sampling"] = sampling(o);
  m["seeds"] = {{"seed", o.seed}, {"rollout_seed", o.rollout_seed}};
  m["algorithm"] = algorithm(plan);
  m["execution"] = execution(plan);
  m["model"] = model(plan, inputs);
  m["data"] = data(plan, inputs);
  m["source"] = source_inventory();
  m["build"] = build_inventory();
  m["hardware"] = host_inventory();
  m["hardware"]["gpus"] = inputs.gpus;
  m["environment"] = environment_inventory();
  m["commands"] = inputs.commands;
  m["memory"] = Json::object();
  for (const auto& [item, bytes] : plan.memory) m["memory"][item] = bytes;
  m["plan_sha256"] = hex(sha256(plan_json.data(), plan_json.size()));
  m["exits"] = Json::array();
  m["files"] = Json::object();
  m["digest"] = manifest_digest(m);
  return m;
}

}  // namespace rlk
