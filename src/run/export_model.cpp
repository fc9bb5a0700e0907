#include "rlk/run/export_model.h"

#include <algorithm>

#include "rlk/base/error.h"
#include "rlk/base/text.h"
#include "rlk/data/checkpoint.h"
#include "rlk/data/export.h"
#include "rlk/run/fingerprint.h"
#include "rlk/run/run_reader.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVersionPrefix = "version-";

// What is read, and the run that recorded it.
struct Source {
  fs::path model_dir;
  fs::path run_dir;  // empty: not a run's
  uint64_t version = 0;
};

std::optional<uint64_t> version_of(const fs::path& folder) {
  const std::string name = folder.filename();
  if (!name.starts_with(kVersionPrefix)) return std::nullopt;
  return parse_unsigned(name.substr(std::string(kVersionPrefix).size()));
}

std::vector<uint64_t> versions_in(const fs::path& checkpoints) {
  std::vector<uint64_t> versions;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(checkpoints, none))
    if (const auto version = version_of(entry.path())) versions.push_back(*version);
  std::sort(versions.begin(), versions.end());
  return versions;
}

Source checkpoint_of_run(const fs::path& run_dir, std::optional<uint64_t> version) {
  const std::vector<uint64_t> versions =
      versions_in((run_dir / RunReader::checkpoint_path(0)).parent_path());
  if (versions.empty())
    throw InputError(run_dir.string(), "has no checkpoints",
                     "a run writes them with --save-interval N");
  if (version && !std::binary_search(versions.begin(), versions.end(), *version)) {
    std::string there;
    for (const uint64_t v : versions) there += (there.empty() ? "" : ", ") + std::to_string(v);
    throw InputError("--version " + std::to_string(*version), "is not in " + run_dir.string(),
                     "there are " + there);
  }
  const uint64_t chosen = version.value_or(versions.back());
  return {run_dir / RunReader::checkpoint_path(chosen), run_dir, chosen};
}

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "manifest.json", ignored);
}

Source find_source(const fs::path& from, std::optional<uint64_t> version) {
  const fs::path folder = fs::absolute(from / "").parent_path();  // no slash at its end
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    throw InputError(from.string(), "no such folder", "must be a run directory or a model folder");
  if (is_run(folder)) return checkpoint_of_run(folder, version);
  if (!fs::exists(folder / "config.json", ignored))
    throw InputError(from.string(), "has neither manifest.json nor config.json",
                     "must be a run directory or a model folder");
  if (version)
    throw InputError("--version", from.string() + " is no run directory",
                     "only runs have versions");
  const auto own = version_of(folder);
  const fs::path run_dir = folder.parent_path().parent_path();
  if (own && is_run(run_dir) && run_dir / RunReader::checkpoint_path(*own) == folder)
    return {folder, run_dir, *own};
  return {folder, {}, 0};
}

// Compares with what the run recorded, tensor by tensor.
class Recorded {
 public:
  explicit Recorded(const Source& source) {
    if (source.run_dir.empty()) return;
    place_ = (source.run_dir / RunReader::version_path(source.version)).string();
    recorded_ = RunReader(source.run_dir).version(source.version);
  }

  void check(const CheckpointTensor& t, const std::vector<bf16>& data) const {
    if (!recorded_) return;
    const auto it = recorded_->tensors.find(t.name);
    if (it == recorded_->tensors.end()) throw InputError(place_, "has no fingerprint of " + t.name);
    if (fingerprint_exported(t.name, data.data(), t.rows, t.columns, sizeof(bf16)) !=
        it->second.weight)
      throw InputError(place_, "the checkpoint's " + t.name + " has another fingerprint",
                       "these are not the weights that the run recorded");
  }

 private:
  std::string place_;
  std::optional<VersionFingerprints> recorded_;
};

}  // namespace

ExportReport export_model(const fs::path& from, std::optional<uint64_t> version,
                          const fs::path& out) {
  const Source source = find_source(from, version);
  const ModelConfig config = read_model_config(source.model_dir);
  const Checkpoint checkpoint(source.model_dir, config);
  checkpoint.verify();
  const Recorded recorded(source);

  ExportReport report;
  report.model_dir = source.model_dir;
  if (!source.run_dir.empty()) report.version = source.version;
  std::vector<bf16> whole;
  export_checkpoint(config, {.out_dir = out, .source_dir = source.model_dir},
                    [&](const CheckpointTensor& t) -> std::span<const bf16> {
                      whole.resize(static_cast<size_t>(t.elements()));
                      checkpoint.read(t.name, 0, t.rows, 0, t.columns, whole.data());
                      recorded.check(t, whole);
                      ++report.tensors;
                      report.bytes += whole.size() * sizeof(bf16);
                      return whole;
                    });
  for (const auto& entry : fs::directory_iterator(out))
    report.files.push_back(entry.path().filename());
  std::sort(report.files.begin(), report.files.end());
  return report;
}

}  // namespace rlk
