#pragma once
// Writes a run directory (docs/formats.md). The launcher creates it and finishes it; in between
// rank 0 attaches and adds each step's files, and every rank leaves its own record. Every file is
// written once: temporary, fsync, rename.
//
// A RunWriter owns nothing but the path; use one per thread. Errors: InputError when a directory
// cannot be created (existing or malformed id, unwritable root), Error with file and reason when a
// write fails later (full disk). A failed write leaves no partial file, and no run directory with a
// failed write passes its gates.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rlk/plan/plan.h"
#include "rlk/run/records.h"

namespace rlk {

// What the manifest needs beyond the plan. Build, source, host and environment are recorded by the
// writer itself.
struct ManifestInputs {
  std::map<std::string, std::string>
      model_files;          // name -> SHA-256 of every file read from the model root
  std::string data_sha256;  // empty for a synthetic model
  std::vector<std::vector<std::string>> commands;  // argv of every rank
  Json gpus = Json::array();                       // from the device layer; empty on the CPU
};

class RunWriter {
 public:
  // Makes plan.run_dir (= output_root / run_id; never reused), its folders, plan.json and
  // manifest.json.
  static RunWriter create(const Plan& plan, const ManifestInputs&);

  // Attaches to a directory that `create` made.
  explicit RunWriter(std::filesystem::path run_dir) : dir_(std::move(run_dir)) {}

  const std::filesystem::path& dir() const { return dir_; }

  // A step's files. REQUIRES: called once a step.
  void append_metrics(const StepMetrics&);
  void write_sidecar(const Trajectory&);
  void write_texts(int64_t step, const std::vector<SampleText>&);
  void write_version(const VersionFingerprints&);
  void write_rollout_weights(const RolloutFingerprints&);

  // Any rank, at its clean end.
  void write_rank_record(const RankRecord&);
  // Any process; the first failure is kept. Never throws: it reports one while another is being
  // handled.
  void write_failure(int rank, const std::string& phase, const std::string& message) noexcept;

  // Launcher, when all processes are gone: completes manifest.json. Nothing but validation may
  // write afterwards.
  void finish(RunStatus, const std::string& message, const std::vector<RankExit>&);

 private:
  std::filesystem::path dir_;
};

}  // namespace rlk
