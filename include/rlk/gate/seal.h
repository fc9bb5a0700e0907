#pragma once
// The seal of a run directory: run-validation.json, then COMPLETE with the SHA-256 of every file,
// written last.

#include <filesystem>
#include <string>
#include <vector>

#include "rlk/gate/gates.h"

namespace rlk {

// Records the validation and, if it passed, seals the directory. Throws InputError when it is
// sealed already, Error when a write fails (then there is no seal).
void seal_run(const std::filesystem::path& run_dir, const Validation&);

bool is_sealed(const std::filesystem::path& run_dir);

// Differences between the seal and the files: changed, missing and extra ones, malformed lines.
// Empty = intact.
std::vector<std::string> check_seal(const std::filesystem::path& run_dir);

// `rlk validate --run-dir D [--seal]`: the gates again, the seal where there is one.
struct ValidateReport {
  Validation validation;
  bool sealed = false;                    // after the call
  std::vector<std::string> seal_defects;  // of an existing seal
  bool passed() const { return validation.passed() && seal_defects.empty(); }
};
ValidateReport validate_command(const std::filesystem::path& run_dir, bool seal);

}  // namespace rlk
