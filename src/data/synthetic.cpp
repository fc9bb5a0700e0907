#include "rlk/data/synthetic.h"

#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/philox.h"
#include "rlk/base/trace_hash.h"
#include "rlk/data/export.h"

namespace rlk {
namespace {

struct Size {
  const char* name;
  int64_t D, F, L, H, KH;
  bool tied;
};
// The published Qwen3 dense models (config.json of each).
constexpr Size kSizes[] = {
    {"qwen3-0.6b", 1024, 3072, 28, 16, 8, true},  {"qwen3-1.7b", 2048, 6144, 28, 16, 8, true},
    {"qwen3-4b", 2560, 9728, 36, 32, 8, true},    {"qwen3-8b", 4096, 12288, 36, 32, 8, false},
    {"qwen3-14b", 5120, 17408, 40, 40, 8, false}, {"qwen3-32b", 5120, 25600, 64, 64, 8, false},
};
constexpr int64_t kVocab = 151936, kHeadDim = 128, kMaxPosition = 40960;
constexpr int32_t kEndOfText = 151643, kImEnd = 151645;

Json config_json(const ModelConfig& c) {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", kEndOfText},
          {"eos_token_id", kImEnd},
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
          {"rms_norm_eps", 1e-06},
          {"rope_scaling", nullptr},
          {"rope_theta", 1000000},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", c.tied},
          {"torch_dtype", "bfloat16"},
          {"use_cache", true},
          {"use_sliding_window", false},
          {"vocab_size", c.vocab}};
}

}  // namespace

ModelConfig synthetic_config(const std::string& size) {
  std::string known;
  for (const Size& s : kSizes) {
    if (size == s.name) {
      ModelConfig c;
      c.vocab = kVocab;
      c.D = s.D;
      c.F = s.F;
      c.L = s.L;
      c.H = s.H;
      c.KH = s.KH;
      c.Dh = kHeadDim;
      c.max_position = kMaxPosition;
      c.tied = s.tied;
      c.eos = {kImEnd, kEndOfText};
      c.pad = kEndOfText;
      return c;
    }
    known += (known.empty() ? "" : ", ") + std::string(s.name);
  }
  throw InputError("--synthetic", size, "must be one of " + known);
}

void synthetic_tensor(uint64_t seed, const CheckpointTensor& tensor, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, bf16* out) {
  const uint64_t key = hash_bytes(tensor.name.data(), tensor.name.size(), seed);
  // A uniform 16-bit word w gives centre + (w - 32767.5) * step: standard deviation 0.02, or width
  // 0.5.
  const float centre = tensor.vector ? 1.0f : 0.0f;
  const float step = (tensor.vector ? 0.5f : 0.0692820323f) / 65536.0f;  // 0.02 * sqrt(12)
  constexpr int64_t kWords = 8;                                          // 16-bit words of a block
  int64_t loaded = -1;
  PhiloxBlock block{};
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = column; c < column + columns; ++c) {
      const int64_t i = r * tensor.columns + c;
      if (i / kWords != loaded) {
        loaded = i / kWords;
        block = philox({{static_cast<uint32_t>(loaded), static_cast<uint32_t>(loaded >> 32), 0, 0}},
                       static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
      }
      const uint32_t word = block.word[i % kWords / 2] >> (i % 2 * 16) & 0xFFFF;
      *out++ = to_bf16(centre + (static_cast<float>(word) - 32767.5f) * step);
    }
  }
}

void write_synthetic_checkpoint(const std::string& size, uint64_t seed,
                                const std::filesystem::path& tokenizer_dir,
                                const std::filesystem::path& out_dir) {
  const ModelConfig config = synthetic_config(size);
  const Json generation = {{"bos_token_id", kEndOfText},
                           {"do_sample", true},
                           {"eos_token_id", config.eos},
                           {"pad_token_id", kEndOfText},
                           {"temperature", 0.6},
                           {"top_k", 20},
                           {"top_p", 0.95}};
  const CompanionFiles files = {{"config.json", config_json(config).dump(2) + "\n"},
                                {"generation_config.json", generation.dump(2) + "\n"}};
  std::vector<bf16> buffer;
  export_checkpoint(config, {out_dir, tokenizer_dir, files}, [&](const CheckpointTensor& t) {
    buffer.resize(static_cast<size_t>(t.elements()));
    synthetic_tensor(seed, t, 0, t.rows, 0, t.columns, buffer.data());
    return std::span<const bf16>(buffer);
  });
}

}  // namespace rlk
