#pragma once
// Writes a Hugging Face checkpoint directory. One thread.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "rlk/data/checkpoint.h"

namespace rlk {

using CompanionFiles = std::map<std::string, std::string>;  // file name -> contents

struct ExportOptions {
  std::filesystem::path out_dir;  // a new one, see check_new_path
  // config.json, generation_config.json and the tokenizer's files are copied from here, where
  // present; empty = from nowhere.
  std::filesystem::path source_dir;
  CompanionFiles files = {};  // replace or complete what source_dir has
  uint64_t max_shard_bytes = 5'000'000'000;
};

// The whole tensor, row-major bf16; the span need only live until the next call. Tensors are asked
// for in the order of checkpoint_tensors().
using TensorProvider = std::function<std::span<const bf16>(const CheckpointTensor&)>;

// InputError where something has this name already, a link included, or its folder is not there.
void check_new_path(const std::filesystem::path& out);

// Atomic: everything goes to a temporary folder beside out_dir, is synced, and renamed. The same
// tensors give the same bytes. Each tensor's SHA-256 is kept in its file's metadata. InputError
// when out_dir is not new or there is no config.json; Error on I/O failure, Interrupted between two
// tensors when a signal asks to end, and then nothing is left behind.
void export_checkpoint(const ModelConfig& config, const ExportOptions& options,
                       const TensorProvider& tensor);

}  // namespace rlk
