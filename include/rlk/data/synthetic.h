#pragma once
// Models of Qwen3's shapes with pseudo-random weights: made in memory or as real files. Pure
// functions of (seed, name, index).

#include <cstdint>
#include <filesystem>
#include <string>

#include "rlk/base/bf16.h"
#include "rlk/data/checkpoint.h"

namespace rlk {

// Dimensions of qwen3-0.6b, -1.7b, -4b, -8b, -14b or -32b. InputError for another name.
ModelConfig synthetic_config(const std::string& size);

// Rows [row, row + rows) x columns [column, column + columns) of a tensor, as Checkpoint::read
// gives them from the written file: matrices uniform with standard deviation 0.02, norm weights
// uniform in [0.75, 1.25).
void synthetic_tensor(uint64_t seed, const CheckpointTensor& tensor, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, bf16* out);

// A checkpoint directory with config.json and generation_config.json; the tokenizer's files are
// copied from `tokenizer_dir` unless it is empty. out_dir must not exist.
void write_synthetic_checkpoint(const std::string& size, uint64_t seed,
                                const std::filesystem::path& tokenizer_dir,
                                const std::filesystem::path& out_dir);

}  // namespace rlk
