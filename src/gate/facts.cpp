#include "facts.h"

#include "rlk/base/error.h"
#include "rlk/run/json_fields.h"

namespace rlk {
namespace {

constexpr const char* kWhere = "manifest.json";

// One of two words.
bool either(const Json& object, const char* key, const char* yes, const char* no) {
  const auto word = json_field<std::string>(object, key, kWhere);
  if (word != yes && word != no) {
    throw InputError(kWhere, std::string("\"") + key + "\" is \"" + word + "\"",
                     std::string("must be ") + yes + " or " + no);
  }
  return word == yes;
}

// An integer of at least `least`.
int64_t count(const Json& object, const char* key, int64_t least) {
  const auto value = json_field<int64_t>(object, key, kWhere);
  if (value < least) {
    throw InputError(kWhere, std::string("\"") + key + "\" is " + std::to_string(value),
                     "must be at least " + std::to_string(least));
  }
  return value;
}

}  // namespace

Facts read_facts(const Json& m) {
  const Json modules = json_field<Json>(m, "modules", kWhere);
  const Json topology = json_field<Json>(m, "topology", kWhere);
  const Json sampling = json_field<Json>(m, "sampling", kWhere);
  const Json algorithm = json_field<Json>(m, "algorithm", kWhere);
  Facts f;
  f.run_id = json_field<std::string>(m, "run_id", kWhere);
  f.status = json_field<std::string>(m, "status", kWhere);
  f.message = json_field<std::string>(m, "message", kWhere);
  f.verify = either(m, "command", "verify", "run");
  f.cuda = either(m, "backend", "cuda", "cpu");
  f.consistency = either(m, "mode", "consistency", "native");
  f.traced = json_field<bool>(json_field<Json>(m, "execution", kWhere), "trace_ops", kWhere);
  f.strict_attention = either(modules, "attention", "strict", "native");
  f.strict_ffn = either(modules, "ffn", "strict", "native");
  f.strict_logp = either(modules, "logp", "strict", "native");
  f.steps = count(m, "steps", 1);
  f.ranks = static_cast<int>(count(topology, "ranks", 1));
  f.engines = static_cast<int>(count(topology, "engines", 1));
  f.prompts_per_step = count(sampling, "rollout_batch_size", 1);
  f.samples_per_prompt = count(sampling, "samples_per_prompt", 1);
  f.max_response_len = count(sampling, "max_response_len", 1);
  f.temperature = json_field<double>(sampling, "temperature", kWhere);
  f.kl_coef = json_field<double>(algorithm, "kl_coef", kWhere);
  f.kl_estimator = json_field<int>(algorithm, "kl_estimator", kWhere);
  return f;
}

}  // namespace rlk
