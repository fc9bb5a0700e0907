#include "rlk/run/run_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "manifest.h"
#include "records_json.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/sha256.h"
#include "rlk/run/inventory.h"
#include "rlk/run/json_fields.h"
#include "rlk/run/manifest_digest.h"
#include "rlk/run/run_reader.h"
#include "sidecar.h"

namespace rlk {
namespace {

constexpr const char* kFolders[] = {"sidecars", "trajectories", "weights", "evidence"};

bool valid_run_id(std::string_view id) {
  const auto alnum = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  return !id.empty() && alnum(id.front()) && std::all_of(id.begin(), id.end(), [&](char c) {
    return alnum(c) || c == '.' || c == '_' || c == '-';
  });
}

// mkdir, not create_directories: an existing directory must be an error.
void make_run_dir(const std::filesystem::path& output_root, const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(output_root, error);
  if (error) throw InputError("--output-root " + output_root.string(), error.message());
  if (::mkdir(dir.c_str(), 0777) == 0) return;
  if (errno == EEXIST) {
    throw InputError("--run-id " + dir.filename().string(), dir.string() + " exists",
                     "choose another id; a run directory is never reused");
  }
  throw InputError("--output-root " + output_root.string(),
                   "mkdir " + dir.string() + ": " + std::strerror(errno),
                   "must be a writable folder");
}

// JSON text of a record. Texts may hold bytes that are no UTF-8: they become U+FFFD.
std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Writes a file that must not exist: nothing in a run directory is rewritten.
void write_once(const std::filesystem::path& path, const std::string& text) {
  if (std::filesystem::exists(path)) throw Error(path.string() + " is already written");
  write_file_atomic(path, text);
}

// SHA-256 of everything that the run itself wrote.
Json evidence_hashes(const std::filesystem::path& dir) {
  Json hashes = Json::object();
  for (const std::string& path : RunReader(dir).evidence_files())
    hashes[path] = hex(sha256_file(dir / path));
  return hashes;
}

}  // namespace

RunWriter RunWriter::create(const Plan& plan, const ManifestInputs& inputs) {
  if (!valid_run_id(plan.run_id)) {
    throw InputError("--run-id", "\"" + plan.run_id + "\"",
                     "must be one path component of [A-Za-z0-9][A-Za-z0-9._-]*");
  }
  const std::filesystem::path dir = plan.output_root / plan.run_id;
  RLK_CHECK(plan.run_dir == dir, plan.run_dir, dir);
  make_run_dir(plan.output_root, dir);
  for (const char* folder : kFolders) {
    if (::mkdir((dir / folder).c_str(), 0777) != 0)
      throw system_error("mkdir " + (dir / folder).string());
  }
  const std::string plan_json = plan_to_json(plan);
  write_file_atomic(dir / "plan.json", plan_json);
  write_file_atomic(dir / "manifest.json", dump(make_manifest(plan_json, inputs), 2));
  return RunWriter(dir);
}

void RunWriter::append_metrics(const StepMetrics& metrics) {
  append_file(dir_ / "metrics.jsonl", dump(to_json(metrics)), true);
}

void RunWriter::write_sidecar(const Trajectory& trajectory) {
  const std::filesystem::path path = dir_ / RunReader::sidecar_path(trajectory.step);
  if (std::filesystem::exists(path)) throw Error(path.string() + " is already written");
  write_sidecar_file(path, trajectory);
}

void RunWriter::write_texts(int64_t step, const std::vector<SampleText>& samples) {
  std::string lines;
  for (const SampleText& s : samples) {
    lines += dump({{"step", step},
                   {"prompt", s.prompt},
                   {"sample", s.sample},
                   {"prompt_text", s.prompt_text},
                   {"response_text", s.response_text},
                   {"label", s.label},
                   {"reward", s.reward},
                   {"advantage", s.advantage},
                   {"truncated", s.truncated}});
  }
  write_once(dir_ / RunReader::texts_path(step), lines);
}

void RunWriter::write_version(const VersionFingerprints& v) {
  write_once(dir_ / RunReader::version_path(v.version), dump(to_json(v), 1));
}

void RunWriter::write_rollout_weights(const RolloutFingerprints& r) {
  write_once(dir_ / RunReader::rollout_weights_path(r.step), dump(to_json(r), 1));
}

void RunWriter::write_rank_record(const RankRecord& r) {
  write_once(dir_ / RunReader::rank_record_path(r.rank), dump(to_json(r), 1));
}

void RunWriter::write_failure(int rank, const std::string& phase,
                              const std::string& message) noexcept {
  try {
    const std::filesystem::path own = dir_ / (".failure." + std::to_string(::getpid()));
    write_file_atomic(own, dump({{"rank", rank}, {"phase", phase}, {"message", message}}, 2));
    // link fails where a failure is recorded already: the first one is kept, and whole.
    [[maybe_unused]] const int rc = ::link(own.c_str(), (dir_ / "failure.json").c_str());
    ::unlink(own.c_str());
  } catch (...) {  // NOLINT(bugprone-empty-catch): the failure that brought us here is reported by
                   // the caller anyway
  }
}

void RunWriter::finish(RunStatus status, const std::string& message,
                       const std::vector<RankExit>& exits) {
  const std::filesystem::path path = dir_ / "manifest.json";
  Json manifest = parse_json(read_file(path), path.string());
  if (json_field<std::string>(manifest, "status", path.string()) != "running")
    throw Error(path.string() + " is finished already");
  manifest["status"] = run_status_name(status);
  manifest["message"] = message;
  manifest["ended"] = utc_now();
  for (const RankExit& e : exits)
    manifest["exits"].push_back({{"rank", e.rank}, {"code", e.code}, {"signal", e.signal}});
  manifest["files"] = evidence_hashes(dir_);
  manifest["digest"] = manifest_digest(manifest);
  write_file_atomic(path, dump(manifest, 2));
}

}  // namespace rlk
