#include "rlk/run/run_reader.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "records_json.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "sidecar.h"

namespace rlk {
namespace {

std::string numbered(const char* prefix, uint64_t number, const char* suffix) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%06llu", static_cast<unsigned long long>(number));
  return std::string(prefix) + digits + suffix;
}

std::vector<Json> json_lines(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  if (!text.empty() && text.back() != '\n')
    throw InputError(path.string(), "ends inside a line", "the file is truncated");
  std::vector<Json> lines;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    // parse_json counts lines from its own text.
    const std::string where = path.string() + " line " + std::to_string(lines.size() + 1);
    lines.push_back(parse_json(rest.substr(0, end), where));
    rest.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

RunReader::RunReader(std::filesystem::path dir) : dir_(std::move(dir)) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(dir_ / "manifest.json", error)) {
    throw InputError(dir_.string(), "is not a run directory", "must hold a manifest.json");
  }
}

Json RunReader::manifest() const {
  const std::filesystem::path path = dir_ / "manifest.json";
  Json manifest = parse_json(read_file(path), path.string());
  if (!manifest.is_object()) throw InputError(path.string(), "is not an object");
  return manifest;
}

std::vector<Json> RunReader::metrics() const {
  return json_lines(dir_ / "metrics.jsonl");
}

Trajectory RunReader::sidecar(int64_t step) const {
  return read_sidecar_file(dir_ / sidecar_path(step), step);
}

std::vector<Json> RunReader::texts(int64_t step) const {
  return json_lines(dir_ / texts_path(step));
}

VersionFingerprints RunReader::version(uint64_t version) const {
  const std::string path = (dir_ / version_path(version)).string();
  VersionFingerprints v = version_from_json(parse_json(read_file(path), path), path);
  if (v.version != version) throw InputError(path, "is of version " + std::to_string(v.version));
  return v;
}

RolloutFingerprints RunReader::rollout_weights(int64_t step) const {
  const std::string path = (dir_ / rollout_weights_path(step)).string();
  RolloutFingerprints r = rollout_from_json(parse_json(read_file(path), path), path);
  if (r.step != step) throw InputError(path, "is of step " + std::to_string(r.step));
  return r;
}

RankRecord RunReader::rank_record(int rank) const {
  const std::string path = (dir_ / rank_record_path(rank)).string();
  RankRecord r = rank_from_json(parse_json(read_file(path), path), path);
  if (r.rank != rank) throw InputError(path, "is of rank " + std::to_string(r.rank));
  return r;
}

std::string RunReader::sidecar_path(int64_t step) {
  return numbered("sidecars/step-", step, ".safetensors");
}
std::string RunReader::texts_path(int64_t step) {
  return numbered("trajectories/step-", step, ".jsonl");
}
std::string RunReader::version_path(uint64_t version) {
  return numbered("weights/version-", version, ".json");
}
std::string RunReader::rollout_weights_path(int64_t step) {
  return numbered("weights/rollout-", step, ".json");
}
std::string RunReader::rank_record_path(int rank) {
  return "evidence/rank-" + std::to_string(rank) + ".json";
}
std::string RunReader::checkpoint_path(uint64_t version) {
  return numbered("checkpoints/version-", version, "");
}

std::vector<std::string> RunReader::files() const {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
    const std::string path = entry.path().lexically_relative(dir_).generic_string();
    if (entry.is_symlink() || !(entry.is_regular_file() || entry.is_directory()))
      throw InputError(entry.path().string(), "is neither a file nor a folder");
    if (entry.is_regular_file()) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> RunReader::evidence_files() const {
  std::vector<std::string> paths = files();
  std::erase_if(paths, [](const std::string& path) {
    for (const char* folder : {"sidecars/", "trajectories/", "weights/", "evidence/"})
      if (path.starts_with(folder)) return false;
    return path != "metrics.jsonl";
  });
  return paths;
}

}  // namespace rlk
