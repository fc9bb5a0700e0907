#include "rlk/profile/model_config.h"

#include <algorithm>

#include "rlk/base/file.h"
#include "rlk/base/json_reader.h"
#include "rlk/base/text.h"

namespace rlk {
namespace {

using Key = JsonReader::Key;

// Bounds of what is read, far above every published model: products of three dimensions stay inside
// int64.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 16;
constexpr int64_t kMaxFfn = 1 << 20;
constexpr int64_t kMaxLayers = 1 << 10;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxHeadDim = 1 << 10;
constexpr int64_t kMaxPosition = 1 << 24;

constexpr int64_t kSliceMultiple = 16;  // the GEMM ops' contract: a slice is a multiple of 16
constexpr int64_t kMaxQueryGroup = 8;   // the attention op's contract: H/KH <= 8

void read_shape(JsonReader& json, ModelConfig& c) {
  json.integer("vocab_size", 1, kMaxVocab, c.vocab);
  json.integer("hidden_size", 1, kMaxHidden, c.D);
  json.integer("intermediate_size", 1, kMaxFfn, c.F);
  json.integer("num_hidden_layers", 1, kMaxLayers, c.L);
  json.integer("num_attention_heads", 1, kMaxHeads, c.H);
  json.integer("num_key_value_heads", 1, kMaxHeads, c.KH);
  json.integer("head_dim", 1, kMaxHeadDim, c.Dh);
  json.integer("max_position_embeddings", 1, kMaxPosition, c.max_position);
  json.boolean("tie_word_embeddings", c.tied);
  double eps = c.rms_eps;
  json.number("rms_norm_eps", 1e-12, 1.0, eps);
  c.rms_eps = static_cast<float>(eps);
}

// rope_theta stands at the top level, or (since transformers 5) in rope_parameters.
void read_rope(JsonReader& json, ModelConfig& c) {
  constexpr double kMaxTheta = 1e12;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* found = json.find(key, Key::optional);
    if (found == nullptr) continue;
    bool plain = found->is_object();
    for (const char* name : {"type", "rope_type"})
      plain = plain && (!found->contains(name) || found->at(name) == "default");
    if (!plain)
      json.fail(key, "scaled rotary embeddings are not supported",
                "must be null, or an object of rope_type \"default\"");
  }
  const Json* parameters = json.find("rope_parameters", Key::optional);
  if (parameters != nullptr && parameters->is_object() &&
      json.find("rope_theta", Key::optional) == nullptr) {
    json.object("rope_parameters").number("rope_theta", 1.0, kMaxTheta, c.rope_theta);
  } else {
    json.number("rope_theta", 1.0, kMaxTheta, c.rope_theta);
  }
}

// What the engines do not compute is refused here, never ignored.
void refuse_unsupported(JsonReader& json) {
  std::string text;
  json.one_of("model_type", {"qwen3"}, text);
  json.one_of("hidden_act", {"silu"}, text);
  for (const char* key : {"attention_bias", "use_sliding_window"}) {
    bool on = false;
    if (json.boolean(key, on, Key::optional) && on) json.fail(key, "true", "must be false");
  }
  std::vector<std::string> layer_types;
  if (json.strings("layer_types", layer_types, Key::optional))
    for (const std::string& type : layer_types)
      if (type != "full_attention") {
        json.fail("layer_types", "\"" + printable(type) + "\"", "must all be \"full_attention\"");
        break;
      }
  if (json.find("quantization_config", Key::optional) != nullptr)
    json.fail("quantization_config", "a quantized model", "must be a bf16 model");
}

void check_slices(JsonReader& json, const ModelConfig& c) {
  const auto slice = [&](const char* key, int64_t total, const std::string& of) {
    if (total > 0 && total % (8 * kSliceMultiple) != 0)
      json.fail(key, std::to_string(total) + (of.empty() ? "" : " (" + of + ")"),
                "an eighth of it must be a multiple of " + std::to_string(kSliceMultiple));
  };
  slice("hidden_size", c.D, "");
  slice("intermediate_size", c.F, "");
  if (c.KH % 8 != 0)
    json.fail("num_key_value_heads", std::to_string(c.KH),
              "must be a multiple of 8, one KV head group for each virtual slice");
  if (c.Dh % 2 != 0) json.fail("head_dim", std::to_string(c.Dh), "must be even");
  if (c.H > 0 && c.KH > 0) {
    if (c.H % c.KH != 0)
      json.fail("num_attention_heads", std::to_string(c.H),
                "must be a multiple of num_key_value_heads " + std::to_string(c.KH));
    else if (c.H / c.KH > kMaxQueryGroup)
      json.fail("num_attention_heads", std::to_string(c.H),
                "must be at most " + std::to_string(kMaxQueryGroup) +
                    " times num_key_value_heads " + std::to_string(c.KH));
    // The packed q|k|v rows follow from the heads: with KH % 8 and H*Dh/8 right they can still be
    // short of 16.
    if (c.KH % 8 == 0 && c.H % c.KH == 0 && c.Dh > 0) {
      slice("head_dim", c.H * c.Dh, "times num_attention_heads " + std::to_string(c.H));
      slice("head_dim", c.qkv_rows(), "times all query, key and value heads");
    }
  }
}

// eos_token_id is one id or an array of them. Returns whether the key is there.
bool read_stop_set(JsonReader& json, int64_t vocab, std::vector<int32_t>& eos) {
  const Json* found = json.find("eos_token_id", Key::optional);
  if (found == nullptr) return false;
  const Json list = found->is_array() ? *found : Json::array({*found});
  const int64_t limit = vocab > 0 ? vocab : kMaxVocab;
  bool right = !list.empty();
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    right = right && id.is_number_integer() && id >= 0 && id < limit;
    if (right) ids.push_back(id.get<int32_t>());
  }
  if (!right)
    json.fail("eos_token_id", shown(*found),
              "must be one token id, or an array of them, from 0 to " + std::to_string(limit - 1));
  else
    eos = ids;
  return true;
}

void read_pad(JsonReader& json, const ModelConfig& c, int32_t& pad) {
  int64_t id = pad;
  json.integer("pad_token_id", 0, (c.vocab > 0 ? c.vocab : kMaxVocab) - 1, id, Key::optional);
  pad = static_cast<int32_t>(id);
}

// The published Qwen3 dense models (config.json of each).
struct Shape {
  const char* name;
  int64_t D, F, L, H, KH;
  bool tied;
};
constexpr Shape kShapes[] = {
    {"qwen3-0.6b", 1024, 3072, 28, 16, 8, true},  {"qwen3-1.7b", 2048, 6144, 28, 16, 8, true},
    {"qwen3-4b", 2560, 9728, 36, 32, 8, true},    {"qwen3-8b", 4096, 12288, 36, 32, 8, false},
    {"qwen3-14b", 5120, 17408, 40, 40, 8, false}, {"qwen3-32b", 5120, 25600, 64, 64, 8, false},
};

}  // namespace

ModelConfig model_of_shape(const std::string& shape, const std::string& where) {
  const std::filesystem::path path = shape;
  if (path.filename() == "config.json")
    return read_model_config(path.has_parent_path() ? path.parent_path() : ".");
  std::string known;
  for (const Shape& s : kShapes) {
    if (shape == s.name) {
      ModelConfig c;
      c.vocab = 151936;
      c.D = s.D;
      c.F = s.F;
      c.L = s.L;
      c.H = s.H;
      c.KH = s.KH;
      c.Dh = 128;
      c.max_position = 40960;
      c.tied = s.tied;
      c.eos = {151645, 151643};
      c.pad = 151643;
      return c;
    }
    known += std::string(s.name) + ", ";
  }
  throw InputError(where, "\"" + printable(shape) + "\"",
                   "must be one of " + known + "or the path of a config.json");
}

ModelConfig read_model_config(const std::filesystem::path& model_dir) {
  const std::filesystem::path config = model_dir / "config.json";
  const std::filesystem::path generation = model_dir / "generation_config.json";
  std::vector<Diagnostic> defects;
  ModelConfig c;

  const Json root = parse_json(read_file(config), config.string());
  JsonReader json(root, config.string(), "", defects);
  refuse_unsupported(json);
  read_shape(json, c);
  read_rope(json, c);
  check_slices(json, c);
  bool stops = read_stop_set(json, c.vocab, c.eos);
  read_pad(json, c, c.pad);

  if (is_there(generation)) {
    try {
      const Json other = parse_json(read_file(generation), generation.string());
      JsonReader overrides(other, generation.string(), "", defects);
      stops = read_stop_set(overrides, c.vocab, c.eos) || stops;
      read_pad(overrides, c, c.pad);
    } catch (const InputError& error) {
      defects.insert(defects.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
  if (!stops && root.is_object())
    json.fail("eos_token_id", "missing", "needed here or in generation_config.json");
  if (!defects.empty()) throw InputError(std::move(defects));
  return c;
}

}  // namespace rlk
