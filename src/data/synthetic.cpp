#include "rlk/data/synthetic.h"

#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/philox.h"
#include "rlk/base/text.h"
#include "rlk/base/trace_hash.h"

namespace rlk {
namespace {

Json config_json(const ModelConfig& c) {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", c.pad < 0 ? Json() : Json(c.pad)},
          {"eos_token_id", c.eos.front()},
          {"head_dim", c.Dh},
          {"hidden_act", "silu"},
          {"hidden_size", c.D},
          {"initializer_range", 0.02},
          {"intermediate_size", c.F},
          {"max_position_embeddings", c.max_position},
          {"max_window_layers", c.L},
          {"model_type", "qwen3"},
          {"num_attention_heads", c.H},
          {"num_hidden_layers", c.L},
          {"num_key_value_heads", c.KH},
          {"rms_norm_eps", *parse_number(format_number(c.rms_eps))},
          {"rope_scaling", nullptr},
          {"rope_theta", c.rope_theta},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", c.tied},
          {"torch_dtype", "bfloat16"},
          {"use_cache", true},
          {"use_sliding_window", false},
          {"vocab_size", c.vocab}};
}

}  // namespace

SyntheticRule synthetic_rule(uint64_t seed, const std::string& tensor, bool vector) {
  const float width = vector ? 0.5f : 0.0692820323f;  // 0.02 * sqrt(12)
  return {hash_bytes(tensor.data(), tensor.size(), seed), vector ? 1.0f : 0.0f, width / 65536.0f};
}

void synthetic_tensor(uint64_t seed, const CheckpointTensor& tensor, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, bf16* out) {
  const SyntheticRule rule = synthetic_rule(seed, tensor.name, tensor.vector);
  int64_t loaded = -1;
  PhiloxBlock block{};
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = column; c < column + columns; ++c) {
      const int64_t i = r * tensor.columns + c;
      if (i / kHalfWords != loaded) {
        loaded = i / kHalfWords;
        block = half_word_block(rule.key, static_cast<uint64_t>(loaded));
      }
      *out++ = to_bf16(uniform_value(half_word(block, i), rule.centre, rule.step));
    }
  }
}

CompanionFiles synthetic_files(const ModelConfig& config) {
  Json generation = {{"do_sample", true},
                     {"eos_token_id", config.eos},
                     {"temperature", 0.6},
                     {"top_k", 20},
                     {"top_p", 0.95}};
  if (config.pad >= 0) generation["bos_token_id"] = generation["pad_token_id"] = config.pad;
  return {{"config.json", config_json(config).dump(2) + "\n"},
          {"generation_config.json", generation.dump(2) + "\n"}};
}

void write_synthetic_checkpoint(const ModelConfig& config, uint64_t seed,
                                const std::filesystem::path& tokenizer_dir,
                                const std::filesystem::path& out_dir) {
  if (!tokenizer_dir.empty() && !is_there(tokenizer_dir / "tokenizer.json"))
    throw InputError(tokenizer_dir.string(), "has no tokenizer.json", "must be a model folder");
  std::vector<bf16> buffer;
  export_checkpoint(config, {out_dir, tokenizer_dir, synthetic_files(config)},
                    [&](const CheckpointTensor& t) {
                      buffer.resize(static_cast<size_t>(t.elements()));
                      synthetic_tensor(seed, t, 0, t.rows, 0, t.columns, buffer.data());
                      return std::span<const bf16>(buffer);
                    });
}

}  // namespace rlk
