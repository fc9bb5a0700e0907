#pragma once
// config.json of a Qwen3 dense model -> ModelConfig. Pure; bad input throws InputError with every
// defect.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rlk {

struct ModelConfig {
  int64_t vocab = 0;  // V, real
  int64_t D = 0, F = 0, L = 0, H = 0, KH = 0, Dh = 0;
  int64_t max_position = 0;
  float rms_eps = 1e-6f;
  double rope_theta = 1e6;
  bool tied = false;
  std::vector<int32_t> eos;  // stop set of generation_config.json, else of config.json
  int32_t pad = -1;

  int64_t padded_vocab() const { return (vocab + 1023) / 1024 * 1024; }  // V'
  int64_t qkv_rows() const { return (H + 2 * KH) * Dh; }
  // Rows or columns of one virtual TP slice.
  int64_t hq() const { return H / 8; }
  int64_t hkv() const { return KH / 8; }
  int64_t qkv_slice() const { return qkv_rows() / 8; }
  int64_t attn_slice() const { return H * Dh / 8; }
  int64_t ffn_slice() const { return F / 8; }
  int64_t vocab_slice() const { return padded_vocab() / 8; }
};

// A model without files: weights and prompts are functions of (seed, name, index).
struct SyntheticModel {
  std::string shape;  // qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, or the path of a config.json
  uint64_t seed = 0;
  int64_t prompt_tokens = 128;  // of every prompt
};

// The dimensions that SyntheticModel::shape names. InputError at `where` for another name; for a
// path as read_model_config.
ModelConfig model_of_shape(const std::string& shape, const std::string& where);

// Reads DIR/config.json and, where present, DIR/generation_config.json. Refuses: model_type other
// than qwen3, KV heads not divisible by 8, H % KH, H/KH > 8, attention_bias, sliding windows, rope
// scaling, hidden_act other than silu, odd Dh, slices that are not multiples of 16, missing or
// mistyped keys: each by name.
ModelConfig read_model_config(const std::filesystem::path& model_dir);

}  // namespace rlk
