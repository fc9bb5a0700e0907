#pragma once
// Reads a run directory, trusting nothing in it. Every function throws InputError naming file and
// place when a file is missing, damaged or inconsistent in itself. A RunReader holds the path alone
// and may be shared by threads.

#include <filesystem>
#include <string>
#include <vector>

#include "rlk/base/json.h"
#include "rlk/run/records.h"

namespace rlk {

class RunReader {
 public:
  // InputError when `dir` is not a folder with a manifest.json.
  explicit RunReader(std::filesystem::path dir);

  const std::filesystem::path& dir() const { return dir_; }

  Json manifest() const;
  std::vector<Json> metrics() const;       // in file order
  Trajectory sidecar(int64_t step) const;  // checks offsets, masks, lengths
  std::vector<Json> texts(int64_t step) const;
  VersionFingerprints version(uint64_t) const;
  RolloutFingerprints rollout_weights(int64_t step) const;
  RankRecord rank_record(int rank) const;

  // Paths relative to the directory, '/'-separated.
  static std::string sidecar_path(int64_t step);
  static std::string texts_path(int64_t step);
  static std::string version_path(uint64_t version);
  static std::string rollout_weights_path(int64_t step);
  static std::string rank_record_path(int rank);
  static std::string checkpoint_path(uint64_t version);  // a folder

  // All regular files below the directory, relative, sorted. InputError on anything that is neither
  // file nor folder.
  std::vector<std::string> files() const;
  // Those among them that the ranks wrote and the manifest hashes: metrics, sidecars, trajectories,
  // weights, evidence.
  std::vector<std::string> evidence_files() const;

 private:
  std::filesystem::path dir_;
};

}  // namespace rlk
