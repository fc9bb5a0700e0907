#pragma once
// A run's content, damaged or not, and what the gates say of it.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/gate/gates.h"
#include "rlk/run/manifest_digest.h"
#include "run_dir/synthetic_run.h"
#include "temp_dir.h"

namespace rlk::test {

namespace fs = std::filesystem;

using Failed = std::set<std::string>;

inline Validation validate(const RunContent& content,
                           const std::function<void(const fs::path&)>& damage = {}) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), content);
  if (damage) damage(run);
  return validate_run(run);
}

inline Failed failed(const Validation& v) {
  Failed names;
  for (const GateResult& g : v.gates)
    if (g.verdict == Verdict::fail) names.insert(g.name);
  return names;
}

inline const GateResult& gate(const Validation& v, const std::string& name) {
  return *std::find_if(v.gates.begin(), v.gates.end(),
                       [&](const GateResult& g) { return g.name == name; });
}

inline std::string shown(const Failed& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

// The metrics of step `step` follow from its samples again, so that a defect is in one place alone.
inline void summarise_again(RunContent& c, size_t step) {
  const StepMetrics old = c.metrics[step];
  c.metrics[step] = summarise(c.steps[step]);
  c.metrics[step].updates = old.updates;
  c.metrics[step].seconds = old.seconds;
}

inline void edit_json(const fs::path& path, const std::function<void(Json&)>& edit) {
  Json json = Json::parse(read_file(path));
  edit(json);
  write_file_atomic(path, json.dump(2) + "\n");
}

// An edit of the manifest that keeps its digest right: what a careful forger would do.
inline std::function<void(const fs::path&)> manifest_edit(const std::function<void(Json&)>& edit) {
  return [edit](const fs::path& run) {
    edit_json(run / "manifest.json", [&](Json& m) {
      edit(m);
      m["digest"] = manifest_digest(m);
    });
  };
}

inline void remove_signal(RunContent& c) {
  for (Trajectory& t : c.steps)
    for (Sample& s : t.samples) {
      s.advantage = 0;
      s.ref_logp = s.train_logp;
    }
  for (auto& texts : c.texts)
    for (SampleText& text : texts) text.advantage = 0;
  for (size_t i = 0; i < c.steps.size(); ++i) summarise_again(c, i);
}

}  // namespace rlk::test
