#include "rlk/gate/seal.h"

#include <map>
#include <string_view>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/sha256.h"
#include "rlk/run/run_reader.h"

namespace rlk {
namespace {

constexpr const char* kSeal = "COMPLETE";
constexpr const char* kValidation = "run-validation.json";

// Lines "<sha256>  <path>" -> path to digest; malformed lines become defects.
std::map<std::string, std::string> parse_seal(std::string_view text,
                                              std::vector<std::string>* defects) {
  std::map<std::string, std::string> digests;
  if (!text.ends_with('\n')) defects->push_back(kSeal + std::string(" ends inside a line"));
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    constexpr size_t kPathAt = 66;
    const bool well_formed = line.size() > kPathAt && line.substr(64, 2) == "  " &&
                             line.find_first_not_of("0123456789abcdef") == 64;
    if (!well_formed || !digests.emplace(line.substr(kPathAt), line.substr(0, 64)).second)
      defects->push_back(kSeal + std::string(" has the line \"") +
                         std::string(line.substr(0, 120)) + "\"");
  }
  return digests;
}

}  // namespace

bool is_sealed(const std::filesystem::path& run_dir) {
  return std::filesystem::exists(run_dir / kSeal);
}

void seal_run(const std::filesystem::path& run_dir, const Validation& validation) {
  if (is_sealed(run_dir)) throw InputError(run_dir.string(), "is sealed already");
  write_file_atomic(run_dir / kValidation, to_json(validation).dump(2) + "\n");
  if (!validation.passed()) return;
  std::string lines;
  for (const std::string& path : RunReader(run_dir).files())
    lines += hex(sha256_file(run_dir / path)) + "  " + path + "\n";
  write_file_atomic(run_dir / kSeal, lines);
}

std::vector<std::string> check_seal(const std::filesystem::path& run_dir) {
  std::vector<std::string> defects;
  auto sealed = parse_seal(read_file(run_dir / kSeal), &defects);
  for (const std::string& path : RunReader(run_dir).files()) {
    if (path == kSeal) continue;
    const auto found = sealed.find(path);
    if (found == sealed.end()) {
      defects.push_back(path + " was added after the seal");
      continue;
    }
    if (found->second != hex(sha256_file(run_dir / path)))
      defects.push_back(path + " was changed after the seal");
    sealed.erase(found);
  }
  for (const auto& [path, digest] : sealed) defects.push_back(path + " is missing");
  return defects;
}

ValidateReport validate_command(const std::filesystem::path& run_dir, bool seal) {
  ValidateReport report;
  report.validation = validate_run(run_dir);
  report.sealed = is_sealed(run_dir);
  if (report.sealed) {
    report.seal_defects = check_seal(run_dir);
  } else if (seal) {
    seal_run(run_dir, report.validation);
    report.sealed = is_sealed(run_dir);
  }
  return report;
}

}  // namespace rlk
