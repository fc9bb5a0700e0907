// Gates of `verify` about the optimizer steps: gradient, learning_rate, weights_changed.
#include <algorithm>
#include <bit>
#include <cmath>

#include "gate_functions.h"
#include "rlk/run/json_fields.h"

namespace rlk {
namespace {

// Does the loss of this step have a gradient by construction: a nonzero advantage, or a nonzero
// derivative of the KL estimator?
bool has_signal(const Trajectory& t, const Facts& facts) {
  for (const Sample& s : t.samples)
    for (size_t i = 0; i < s.train_logp.size(); ++i) {
      if (s.train_logp[i] == 0) continue;  // the only token of its support: no logit moves it
      if (s.advantage != 0) return true;
      if (facts.kl_coef == 0 || s.ref_logp.empty()) continue;
      if (facts.kl_estimator == 1) return true;           // the derivative of k1 is the constant 1
      if (s.ref_logp[i] != s.train_logp[i]) return true;  // k2 and k3 vanish at equality alone
    }
  return false;
}

// Steps with signal. Without any, settles the verdict: greedy samples are identical, so there is
// nothing to learn from; anything else without signal is a defect.
std::vector<int64_t> steps_with_signal(const Run& run, GateResult* result) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < run.facts.steps; ++step)
    if (has_signal(run.reader.sidecar(step), run.facts)) steps.push_back(step);
  result->figures["steps_with_signal"] = steps.size();
  if (!steps.empty()) return steps;
  if (run.facts.temperature == 0) {
    result->verdict = Verdict::not_applicable;
    result->detail = "greedy samples are identical: no step has a signal";
  } else {
    fail(result, "no step has a signal: every advantage and KL derivative is zero");
  }
  return steps;
}

const Json& line_of(const std::vector<Json>& metrics, int64_t step) {
  if (static_cast<size_t>(step) >= metrics.size())
    throw InputError("metrics.jsonl", "step " + std::to_string(step) + " is missing");
  return metrics[static_cast<size_t>(step)];
}

std::string step_text(int64_t step) {
  return "step " + std::to_string(step) + ": ";
}

}  // namespace

void gate_gradient(const Run& run, GateResult* result) {
  const std::vector<int64_t> steps = steps_with_signal(run, result);
  const std::vector<Json> metrics = run.reader.metrics();
  double smallest = INFINITY;
  for (const int64_t step : steps) {
    const Json updates = json_field<Json>(line_of(metrics, step), "updates", "metrics.jsonl");
    double norm = 0;  // the largest: with several updates, the signal may sit in one of them
    for (const Json& update : updates)
      norm = std::max(norm, json_field<double>(update, "grad_norm", "metrics.jsonl"));
    if (!(norm > 0) || !std::isfinite(norm))
      fail(result, step_text(step) + "gradient norm is " + Json(norm).dump() +
                       " although the step has a signal");
    smallest = std::min(smallest, norm);
    run.reader.version(static_cast<uint64_t>(step) +
                       1);  // throws where a gradient fingerprint is missing
  }
  if (result->verdict != Verdict::pass) return;
  result->figures["smallest_norm"] = smallest;
  result->detail = std::to_string(steps.size()) + " steps with signal, smallest gradient norm " +
                   Json(smallest).dump();
}

void gate_learning_rate(const Run& run, GateResult* result) {
  if (steps_with_signal(run, result).empty()) return;
  double smallest = INFINITY;
  const std::vector<Json> metrics = run.reader.metrics();
  for (int64_t step = 0; step < run.facts.steps; ++step) {
    for (const Json& update :
         json_field<Json>(line_of(metrics, step), "updates", "metrics.jsonl")) {
      const double lr = json_field<double>(update, "lr", "metrics.jsonl");
      if (!(lr > 0) || !std::isfinite(lr))
        fail(result, step_text(step) + "learning rate is " + Json(lr).dump());
      smallest = std::min(smallest, lr);
    }
  }
  if (result->verdict != Verdict::pass) return;
  result->figures["smallest"] = smallest;
  result->detail = "at least " + Json(smallest).dump() + " in every step";
}

void gate_weights_changed(const Run& run, GateResult* result) {
  size_t fewest = SIZE_MAX, tensors = 0;
  for (const int64_t step : steps_with_signal(run, result)) {
    const auto before = run.reader.version(static_cast<uint64_t>(step));
    const auto after = run.reader.version(static_cast<uint64_t>(step) + 1);
    size_t changed = 0;
    for (const auto& [name, t] : after.tensors) {
      const auto found = before.tensors.find(name);
      changed += found != before.tensors.end() && found->second.weight != t.weight;
    }
    if (changed == 0)
      fail(result,
           step_text(step) + "version " + std::to_string(step + 1) +
               " has the weights of version " + std::to_string(step),
           RunReader::version_path(static_cast<uint64_t>(step) + 1));
    fewest = std::min(fewest, changed);
    tensors = after.tensors.size();
  }
  if (result->verdict != Verdict::pass) return;
  result->figures["fewest_changed"] = fewest;
  result->figures["tensors"] = tensors;
  result->detail = "every step with signal changed at least " + std::to_string(fewest) + " of " +
                   std::to_string(tensors) + " tensors";
}

}  // namespace rlk
