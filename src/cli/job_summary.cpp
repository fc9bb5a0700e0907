#include "job_summary.h"

#include <fmt/format.h>

#include "rlk/base/error.h"

namespace rlk {

int JobOutcome::exit_code() const {
  if (!launched.ok()) return launched.exit_code();
  return validation.passed() ? kExitOk : kExitDifferent;
}

std::string outcome_text(const JobOutcome& outcome) {
  const Topology& t = outcome.plan.options.topology;
  const char* command = outcome.plan.options.command == Command::verify ? "verify" : "run";
  std::string text;
  if (outcome.launched.ok()) {
    text = to_text(outcome.validation);
    text += fmt::format(
        "\n{} {}: {} steps, training tp {} x cp {}, rollout tp {} x cp {}, {} engine{}\n", command,
        outcome.passed() ? "passed and is sealed" : "FAILED its gates, no seal",
        outcome.plan.options.steps, t.tp, t.cp, t.rollout_tp, t.rollout_cp, t.engines(),
        t.engines() == 1 ? "" : "s");
  } else {
    text = fmt::format("{} FAILED: {}\n", command, outcome.launched.text());
  }
  return text + outcome.plan.run_dir.string() + "\n";
}

std::string outcome_json(const JobOutcome& outcome) {
  Json json;
  json["run_id"] = outcome.plan.run_id;
  json["run_dir"] = outcome.plan.run_dir.string();
  json["passed"] = outcome.passed();
  json["sealed"] = outcome.passed();
  json["exit_code"] = outcome.exit_code();
  json["failure"] = outcome.launched.ok() ? Json(nullptr) : Json(outcome.launched.text());
  json["validation"] = to_json(outcome.validation);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rlk
