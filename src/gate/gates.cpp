#include "rlk/gate/gates.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "facts.h"
#include "gate_functions.h"

namespace rlk {
namespace {

struct Gate {
  const char* name;
  GateFunction run;
  const char* evidence;  // where to look when the gate passes
  bool verify_only = false;
};
constexpr Gate kGates[] = {{"steps", gate_steps, "metrics.jsonl"},
                           {"ranks", gate_ranks, "evidence"},
                           {"metrics", gate_metrics, "metrics.jsonl"},
                           {"logprobs", gate_logprobs, "sidecars"},
                           {"samples", gate_samples, "sidecars"},
                           {"kernels", gate_kernels, "evidence"},
                           {"graphs", gate_graphs, "evidence"},
                           {"rollout_weights", gate_rollout_weights, "weights"},
                           {"manifest", gate_manifest, "manifest.json"},
                           {"gradient", gate_gradient, "metrics.jsonl", true},
                           {"learning_rate", gate_learning_rate, "metrics.jsonl", true},
                           {"weights_changed", gate_weights_changed, "weights", true}};

GateResult evaluate(const Gate& gate, const Run& run) {
  GateResult result{gate.name, Verdict::pass, "", Json::object(), gate.evidence};
  try {
    gate.run(run, &result);
  } catch (const std::exception& e) {  // unreadable evidence, whatever the reader's reason
    fail(&result, e.what());
  }
  return result;
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "pass";
    case Verdict::fail:
      return "fail";
    case Verdict::not_applicable:
      return "not_applicable";
  }
  return "";
}

bool Validation::passed() const {
  return std::none_of(gates.begin(), gates.end(),
                      [](const GateResult& g) { return g.verdict == Verdict::fail; });
}

Validation validate_run(const std::filesystem::path& run_dir) {
  const RunReader reader(run_dir);
  Validation validation;
  Facts facts;
  try {
    facts = read_facts(reader.manifest());
    validation.run_id = facts.run_id;
  } catch (const std::exception& e) {
    // Nothing can be judged without knowing what was planned.
    validation.gates.push_back(
        {"manifest", Verdict::fail, e.what(), Json::object(), "manifest.json"});
    return validation;
  }
  for (const Gate& gate : kGates)
    if (facts.verify || !gate.verify_only)
      validation.gates.push_back(evaluate(gate, {reader, facts}));
  return validation;
}

Json to_json(const Validation& v) {
  Json gates = Json::array();
  for (const GateResult& g : v.gates) {
    gates.push_back({{"name", g.name},
                     {"verdict", verdict_name(g.verdict)},
                     {"detail", g.detail},
                     {"figures", g.figures},
                     {"evidence", g.evidence}});
  }
  return {{"schema", "rlk.validation.v1"},
          {"run_id", v.run_id},
          {"passed", v.passed()},
          {"gates", std::move(gates)}};
}

std::string to_text(const Validation& v) {
  std::string text;
  for (const GateResult& g : v.gates) {
    const std::string verdict =
        g.verdict == Verdict::not_applicable ? "n/a" : verdict_name(g.verdict);
    text += verdict + std::string(6 - verdict.size(), ' ') + g.name +
            std::string(17 - g.name.size(), ' ') + g.detail;
    if (g.verdict == Verdict::fail) text += " (" + g.evidence + ")";
    text += "\n";
  }
  return text;
}

}  // namespace rlk
