// validate, compare, debug: commands that read run directories.

#include <fmt/format.h>

#include "arguments.h"
#include "rlk/gate/seal.h"
#include "rlk/run/compare.h"
#include "rlk/run/trace.h"

namespace rlk {
namespace {

void refuse(const std::vector<Diagnostic>& defects) {
  if (!defects.empty()) throw InputError(defects);
}

struct TwoRuns {
  std::string a, b;
};

// False when --help was answered.
bool read_runs(const std::string& command, const std::string& title, size_t needed,
               const Arguments& args, TwoRuns& runs) {
  CommandLine line("rlk " + command, "rlk " + command + ": " + title);
  line.option("A", runs.a, "run directory", "");
  line.option("B", runs.b, "run directory", "");
  bool helped = false;
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return false;
  const size_t given = (runs.a.empty() ? 0 : 1) + (runs.b.empty() ? 0 : 1);
  if (given < needed)
    defects.push_back(
        {"command line", "a run directory is missing", needed == 2 ? "two are compared" : ""});
  refuse(defects);
  return true;
}

std::string seal_text(const ValidateReport& report) {
  std::string text;
  for (const std::string& defect : report.seal_defects) text += "seal: " + defect + "\n";
  if (!report.sealed) return text + "not sealed\n";
  return text + (report.seal_defects.empty() ? "sealed, and every file is as the seal says\n" : "");
}

}  // namespace

int validate_run_command(const Arguments& args) {
  std::string run_dir, format = "text";
  bool seal = false, helped = false;
  CommandLine line("rlk validate", "rlk validate: the gates on a run directory");
  line.option("--run-dir", run_dir, "run directory", "DIR");
  line.flag("--seal", seal, "seal it if every gate passes");
  line.option("--format", format, "what is printed (text)", "text|json");
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (run_dir.empty()) defects.push_back({"--run-dir", "missing", "must be a run directory"});
  if (format != "text" && format != "json")
    defects.push_back({"--format " + format, "must be text or json", ""});
  refuse(defects);

  const ValidateReport report = validate_command(run_dir, seal);
  if (format == "json") {
    Json json = to_json(report.validation);
    json["sealed"] = report.sealed;
    json["seal_defects"] = report.seal_defects;
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}{}", to_text(report.validation), seal_text(report));
  }
  return report.passed() ? kExitOk : kExitDifferent;
}

int compare_command(const Arguments& args) {
  TwoRuns runs;
  if (!read_runs("compare", "first difference between two runs' trajectories", 2, args, runs))
    return kExitOk;
  const RunComparison found = compare_runs(runs.a, runs.b);
  if (found.first) {
    fmt::print("{}\n", found.first->text());
    return kExitDifferent;
  }
  fmt::print("equal: {} steps, {} samples, {} tokens, {} fingerprints\n", found.steps,
             found.samples, found.tokens, found.fingerprints);
  return kExitOk;
}

int debug_command(const Arguments& args) {
  TwoRuns runs;
  if (!read_runs("debug",
                 "first op whose output differs between two runs with --trace-ops; with one run, "
                 "between its rollout and its scoring",
                 1, args, runs))
    return kExitOk;
  const TraceComparison found =
      runs.b.empty() ? compare_trace_phases(runs.a) : compare_traces(runs.a, runs.b);
  if (found.first) {
    fmt::print("{}\n", found.first->text());
    return kExitDifferent;
  }
  fmt::print("equal: {} records\n", found.compared);
  return kExitOk;
}

}  // namespace rlk
