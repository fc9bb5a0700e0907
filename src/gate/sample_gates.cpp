// Gates about what was sampled and scored: metrics, logprobs, samples.
#include <bit>
#include <cmath>
#include <cstdio>
#include <set>

#include "gate_functions.h"
#include "rlk/run/json_fields.h"

namespace rlk {
namespace {

// Keys of a metrics line that must hold a number, nested ones with a dot.
constexpr const char* kMetricKeys[] = {"step",
                                       "weight_version",
                                       "samples",
                                       "prompt_tokens",
                                       "response_tokens",
                                       "reward_mean",
                                       "reward_std",
                                       "response_len_mean",
                                       "response_len_max",
                                       "truncated_ratio",
                                       "advantage_min",
                                       "advantage_max",
                                       "loss",
                                       "policy_loss",
                                       "kl",
                                       "grad_norm",
                                       "lr",
                                       "mismatch_count",
                                       "mismatch_max_abs",
                                       "mismatch_mean_abs",
                                       "tokens_per_second"};
constexpr const char* kUpdateKeys[] = {"loss",          "policy_loss", "kl",
                                       "clip_fraction", "grad_norm",   "lr"};
constexpr const char* kUpdateMeans[] = {"loss", "policy_loss", "kl", "grad_norm", "lr"};
// Keys that follow from the step's samples.
constexpr const char* kSampleKeys[] = {
    "samples",           "prompt_tokens",    "response_tokens", "reward_mean",   "reward_std",
    "response_len_mean", "response_len_max", "truncated_ratio", "advantage_min", "advantage_max"};
constexpr const char* kStageKeys[] = {"rollout",   "sync",  "score", "train",
                                      "optimizer", "audit", "step"};

// The first key of `keys` that holds no finite number, or "".
template <size_t N>
std::string bad_number(const Json& object, const char* const (&keys)[N]) {
  for (const char* key : keys) {
    if (!object.is_object() || !object.contains(key)) return std::string(key) + " is missing";
    const Json& value = object.at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      return std::string(key) + " is " + value.dump().substr(0, 40);
  }
  return "";
}

bool same_double(double a, const Json& b) {
  return b.is_number() && std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b.get<double>());
}

std::string bad_line(const Json& line) {
  if (const std::string bad = bad_number(line, kMetricKeys); !bad.empty()) return bad;
  if (!line.contains("updates") || !line["updates"].is_array() || line["updates"].empty())
    return "updates are missing";
  for (size_t i = 0; i < line["updates"].size(); ++i) {
    const std::string bad = bad_number(line["updates"][i], kUpdateKeys);
    if (!bad.empty()) return "updates." + std::to_string(i) + "." + bad;
  }
  for (const char* key : kUpdateMeans) {
    double sum = 0;
    for (const Json& update : line["updates"]) sum += update[key].get<double>();
    if (!same_double(sum / static_cast<double>(line["updates"].size()), line[key]))
      return std::string(key) + " is not the mean over the updates";
  }
  if (!line.contains("seconds")) return "seconds is missing";
  const std::string bad = bad_number(line["seconds"], kStageKeys);
  return bad.empty() ? "" : "seconds." + bad;
}

std::string at_step(size_t step) {
  return "step " + std::to_string(step);
}

std::string place(int64_t step, const Sample& s, size_t response_index) {
  return at_step(static_cast<size_t>(step)) + ", prompt " + std::to_string(s.prompt) + ", sample " +
         std::to_string(s.sample) + ", position " +
         std::to_string(s.prompt_len + static_cast<int64_t>(response_index));
}

std::string bits(float value) {
  char text[48];
  std::snprintf(text, sizeof text, "0x%08x (%.9g)", std::bit_cast<uint32_t>(value), value);
  return text;
}

// First token whose pair of log-probs breaks the rule, as text; "" when none does.
std::string first_bad_pair(const Trajectory& t, bool equality) {
  for (const Sample& s : t.samples) {
    for (size_t i = 0; i < s.rollout_logp.size(); ++i) {
      const float a = s.rollout_logp[i], b = s.train_logp[i];
      const bool finite = std::isfinite(a) && std::isfinite(b);
      const bool equal = std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
      if (finite && (equal || !equality)) continue;
      return place(t.step, s, i) + ": rollout " + bits(a) + ", training " + bits(b);
    }
  }
  return "";
}

// ---- samples ----------------------------------------------------------------------------------

// First sample that breaks order, count or coverage; "" when none does.
std::string bad_sample(const Trajectory& t, const Facts& facts) {
  const int64_t expected = facts.prompts_per_step * facts.samples_per_prompt;
  std::set<int64_t> prompts;
  for (size_t i = 0; i < t.samples.size(); ++i) {
    const Sample& s = t.samples[i];
    const std::string which =
        "prompt " + std::to_string(s.prompt) + ", sample " + std::to_string(s.sample);
    const int64_t index = static_cast<int64_t>(i) % facts.samples_per_prompt;
    const bool begins_prompt = index == 0;
    if (s.sample != index || (!begins_prompt && s.prompt != t.samples[i - 1].prompt))
      return which + " stands where sample " + std::to_string(index) + " of a prompt belongs";
    if (begins_prompt && i > 0 && s.prompt <= t.samples[i - 1].prompt)
      return which + " is out of order";
    prompts.insert(s.prompt);
    if (s.prompt_len < 1) return which + " has no prompt";
    if (s.response_len() < 1) return which + " has no response token";
    if (s.response_len() > facts.max_response_len)
      return which + " has " + std::to_string(s.response_len()) +
             " response tokens, the limit is " + std::to_string(facts.max_response_len);
    if (facts.kl_coef > 0 && s.ref_logp.size() != s.train_logp.size())
      return which + " has no reference log-probs";
    for (const float x : s.ref_logp)
      if (!std::isfinite(x)) return which + " has a reference log-prob that is not finite";
    if (!std::isfinite(s.reward) || !std::isfinite(s.advantage))
      return which + " has a reward or advantage that is not finite";
  }
  if (static_cast<int64_t>(t.samples.size()) == expected) return "";
  return std::to_string(t.samples.size()) + " samples, planned were " + std::to_string(expected);
}

// The trajectories file must list the sidecar's samples with the same rewards.
std::string bad_texts(const std::vector<Json>& texts, const Trajectory& t) {
  if (texts.size() != t.samples.size())
    return std::to_string(texts.size()) + " texts for " + std::to_string(t.samples.size()) +
           " samples";
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string where = "line " + std::to_string(i + 1);
    const Sample& s = t.samples[i];
    if (json_field<int64_t>(texts[i], "step", where) != t.step ||
        json_field<int64_t>(texts[i], "prompt", where) != s.prompt ||
        json_field<int64_t>(texts[i], "sample", where) != s.sample)
      return where + " is of another sample than the sidecar's";
    if (!same_double(s.reward, json_field<Json>(texts[i], "reward", where)) ||
        !same_double(s.advantage, json_field<Json>(texts[i], "advantage", where)))
      return where + " has another reward or advantage than the sidecar";
    if (json_field<bool>(texts[i], "truncated", where) != s.truncated)
      return where + " is truncated in one of text and sidecar";
  }
  return "";
}

// What the metrics say of the samples must be what the sidecar's samples say.
std::string bad_report(const std::vector<Json>& metrics, const StepMetrics& m) {
  if (static_cast<size_t>(m.step) >= metrics.size()) return "no line in metrics.jsonl";
  const Json& line = metrics[static_cast<size_t>(m.step)];
  const Json expected = to_json(m);
  for (const char* key : kSampleKeys) {
    const Json reported = json_field<Json>(line, key, "metrics.jsonl");
    if (!reported.is_number() || !same_double(expected[key].get<double>(), reported))
      return std::string(key) + " is " + reported.dump() + ", by the sidecar " +
             expected[key].dump();
  }
  return "";
}

}  // namespace

void gate_metrics(const Run& run, GateResult* result) {
  const std::vector<Json> lines = run.reader.metrics();
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string bad = bad_line(lines[i]);
    if (!bad.empty()) fail(result, "line " + std::to_string(i + 1) + ": " + bad);
  }
  if (lines.empty()) fail(result, "no step is recorded");
  result->figures = {{"steps", lines.size()}};
  if (result->verdict == Verdict::pass)
    result->detail = std::to_string(lines.size()) + " steps, all numbers finite";
}

void gate_logprobs(const Run& run, GateResult* result) {
  const bool equality = run.facts.promises_equality();
  const std::vector<Json> metrics = run.reader.metrics();
  int64_t compared = 0, differ = 0;
  double max_abs = 0, sum_abs = 0;
  for (int64_t step = 0; step < run.facts.steps; ++step) {
    const std::string path = RunReader::sidecar_path(step);
    const Trajectory t = run.reader.sidecar(step);
    const StepMetrics m = summarise(t);
    compared += m.response_tokens;
    differ += m.mismatch_count;
    max_abs = std::max(max_abs, m.mismatch_max_abs);
    sum_abs += m.mismatch_mean_abs * static_cast<double>(m.response_tokens);
    const std::string bad = first_bad_pair(t, equality);
    if (!bad.empty()) fail(result, bad, path);
    const size_t line = static_cast<size_t>(step);
    const bool reported =
        line < metrics.size() &&
        json_field<Json>(metrics[line], "mismatch_count", "metrics.jsonl") ==
            Json(m.mismatch_count) &&
        same_double(m.mismatch_max_abs,
                    json_field<Json>(metrics[line], "mismatch_max_abs", "metrics.jsonl")) &&
        same_double(m.mismatch_mean_abs,
                    json_field<Json>(metrics[line], "mismatch_mean_abs", "metrics.jsonl"));
    if (!reported)
      fail(result, at_step(line) + ": metrics do not report the mismatch that the sidecar holds",
           "metrics.jsonl");
  }
  if (compared == 0) fail(result, "no log-prob was compared");
  const double mean_abs = compared == 0 ? 0 : sum_abs / static_cast<double>(compared);
  result->figures = {
      {"compared", compared}, {"differ", differ}, {"max_abs", max_abs}, {"mean_abs", mean_abs}};
  if (result->verdict != Verdict::pass) return;
  char measured[96];
  std::snprintf(measured, sizeof measured, ", max %.3g, mean %.3g", max_abs, mean_abs);
  result->detail = std::to_string(compared) + " log-probs, " + std::to_string(differ) + " differ" +
                   (equality ? "" : measured);
}

void gate_samples(const Run& run, GateResult* result) {
  int64_t samples = 0, tokens = 0;
  const std::vector<Json> metrics = run.reader.metrics();
  for (int64_t step = 0; step < run.facts.steps; ++step) {
    const Trajectory t = run.reader.sidecar(step);
    const std::string prefix = at_step(static_cast<size_t>(step)) + ": ";
    if (t.weight_version != static_cast<uint64_t>(step))
      fail(result, prefix + "sampled with weight version " + std::to_string(t.weight_version),
           RunReader::sidecar_path(step));
    const std::string bad = bad_sample(t, run.facts);
    if (!bad.empty()) fail(result, prefix + bad, RunReader::sidecar_path(step));
    const std::string other = bad_texts(run.reader.texts(step), t);
    if (!other.empty()) fail(result, prefix + other, RunReader::texts_path(step));
    const StepMetrics m = summarise(t);
    samples += m.samples;
    tokens += m.response_tokens;
    const std::string misreported = bad_report(metrics, m);
    if (!misreported.empty()) fail(result, prefix + misreported, "metrics.jsonl");
  }
  result->figures = {{"samples", samples}, {"response_tokens", tokens}};
  if (result->verdict == Verdict::pass)
    result->detail = std::to_string(samples) + " samples, " + std::to_string(tokens) +
                     " response tokens, all scored";
}

}  // namespace rlk
