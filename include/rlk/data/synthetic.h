#pragma once
// Models of Qwen3's shapes with pseudo-random weights: made in memory or as real files. Pure
// functions of (seed, name, index).

#include <cstdint>
#include <filesystem>
#include <string>

#include "rlk/base/bf16.h"
#include "rlk/data/checkpoint.h"
#include "rlk/data/export.h"

namespace rlk {

// Matrices are uniform with standard deviation 0.02, norm weights uniform in [0.75, 1.25): element
// i is round(centre + (w - 32767.5) * step), w the 16-bit word i of the key's sequence
// (base/philox.h). The op init_uniform makes the same values on the device.
struct SyntheticRule {
  uint64_t key;
  float centre, step;
};
SyntheticRule synthetic_rule(uint64_t seed, const std::string& tensor, bool vector);

// Rows [row, row + rows) x columns [column, column + columns) of a tensor, as Checkpoint::read
// gives them from the written file.
void synthetic_tensor(uint64_t seed, const CheckpointTensor& tensor, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, bf16* out);

// config.json and generation_config.json of a model that has no files of its own.
CompanionFiles synthetic_files(const ModelConfig& config);

// A checkpoint directory with these files; the tokenizer's are copied from `tokenizer_dir` unless
// it is empty. out_dir must not exist.
void write_synthetic_checkpoint(const ModelConfig& config, uint64_t seed,
                                const std::filesystem::path& tokenizer_dir,
                                const std::filesystem::path& out_dir);

}  // namespace rlk
