#pragma once
// Gates: a run directory -> verdicts. Pure functions that only read; damaged evidence is a failed
// gate that names the file, never an exception. The table of gates is in docs/formats.md.

#include <filesystem>
#include <string>
#include <vector>

#include "rlk/base/json.h"

namespace rlk {

enum class Verdict { pass, fail, not_applicable };
const char* verdict_name(Verdict);

struct GateResult {
  std::string name;
  Verdict verdict = Verdict::fail;
  std::string detail;             // one line: what was found, or the first defect
  Json figures = Json::object();  // counts and measures
  std::string evidence;           // path relative to the run directory
};

struct Validation {
  std::string run_id;
  std::vector<GateResult> gates;
  bool passed() const;  // no gate failed
};

// InputError only when `run_dir` is no run directory at all (no folder, or no manifest.json).
Validation validate_run(const std::filesystem::path& run_dir);

Json to_json(const Validation&);
std::string to_text(const Validation&);  // one aligned line a gate

}  // namespace rlk
