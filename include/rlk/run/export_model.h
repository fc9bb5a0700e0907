#pragma once
// `rlk export`: a run's checkpoint, or any model folder, as a Hugging Face folder. One thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rlk {

struct ExportReport {
  std::vector<std::string> files;  // written, sorted
  size_t tensors = 0;
  uint64_t bytes = 0;               // of the tensors
  std::filesystem::path model_dir;  // what was read
  // The run's version whose recorded fingerprints all tensors have; nothing for a model folder.
  std::optional<uint64_t> version;
};

// `from` is a run directory (then `version`, or its newest checkpoint, is taken), a checkpoint
// inside one, or a model folder. Every number is checked on the way (Checkpoint::verify), and a
// run's tensors against the fingerprints that the run recorded. `out` must not exist; it appears
// as a whole or not at all. InputError names what is missing or damaged.
ExportReport export_model(const std::filesystem::path& from, std::optional<uint64_t> version,
                          const std::filesystem::path& out);

}  // namespace rlk
