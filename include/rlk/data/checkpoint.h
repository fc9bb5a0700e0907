#pragma once
// A Hugging Face Qwen3 checkpoint (model.safetensors, or shards with model.safetensors.index.json),
// checked against the model's dimensions and read range by range as bf16, so that a rank touches
// its own shard alone. A Checkpoint is immutable and may be shared by threads.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "rlk/base/bf16.h"
#include "rlk/profile/model_config.h"

namespace rlk {

struct CheckpointTensor {
  std::string name;  // "model.layers.0.mlp.up_proj.weight"
  int64_t rows = 0, columns = 0;
  bool vector = false;  // [rows] in the file; columns = 1

  std::vector<int64_t> shape() const {
    return vector ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, columns};
  }
  int64_t elements() const { return rows * columns; }
};

// Every tensor of the model, in the order in which checkpoints are written: embedding, layers,
// final norm, head (when untied). 399 for Qwen3-8B.
std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config);

class Checkpoint {
 public:
  // Opens every file. InputError lists all missing, extra, duplicate, misshapen and mistyped
  // tensors together, each with its file. Sources may be BF16, F16 or F32. A tied model may carry
  // lm_head.weight when it equals the embedding.
  Checkpoint(const std::filesystem::path& model_dir, const ModelConfig& config);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  // Rows [row, row + rows) x columns [column, column + columns) of a tensor that
  // checkpoint_tensors() names, rounded to bf16 (nearest, ties to even), into out[r * columns + c].
  // The range must lie inside.
  void read(const std::string& name, int64_t row, int64_t rows, int64_t column, int64_t columns,
            bf16* out) const;

  // Reads everything, with several threads: compares each tensor with the SHA-256 that rlk's own
  // exports carry, and refuses NaN and infinity. InputError lists the damaged tensors with file and
  // element.
  void verify() const;

  const std::vector<std::filesystem::path>& files() const;
  uint64_t bytes() const;  // of all tensors as stored

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Key of a tensor's SHA-256 (64 hex digits, of its bytes) in a file's __metadata__.
std::string checksum_key(const std::string& tensor);

}  // namespace rlk
