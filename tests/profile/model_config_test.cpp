// config.json readers: every Qwen3 dense size is taken, and every defect of a hostile file is
// named, all at once.
#include "rlk/profile/model_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "rlk/base/error.h"
#include "rlk/base/json.h"
#include "temp_dir.h"

namespace {

using namespace rlk;

Json valid_config() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "eos_token_id": 151645,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 151936})");
}

class ModelConfigFile : public ::testing::Test {
 protected:
  void write(const std::string& text, const char* name = "config.json") {
    std::ofstream(dir_.path() / name, std::ios::binary) << text;
  }
  ModelConfig read(const Json& config) {
    write(config.dump());
    return read_model_config(dir_.path());
  }
  // The defects of a config, one per line; empty when it is taken.
  std::string defects(const Json& config) {
    try {
      read(config);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  }
  test::TempDir dir_;
};

struct Size {
  const char* name;
  int64_t D, F, L, H;
  bool tied;
};

}  // namespace

TEST_F(ModelConfigFile, TakesEveryQwen3DenseSize) {
  const Size sizes[] = {{"0.6B", 1024, 3072, 28, 16, true},  {"1.7B", 2048, 6144, 28, 16, true},
                        {"4B", 2560, 9728, 36, 32, true},    {"8B", 4096, 12288, 36, 32, false},
                        {"14B", 5120, 17408, 40, 40, false}, {"32B", 5120, 25600, 64, 64, false}};
  for (const Size& size : sizes) {
    SCOPED_TRACE(size.name);
    Json config = valid_config();
    config["hidden_size"] = size.D;
    config["intermediate_size"] = size.F;
    config["num_hidden_layers"] = size.L;
    config["num_attention_heads"] = size.H;
    config["tie_word_embeddings"] = size.tied;
    const ModelConfig c = read(config);
    EXPECT_EQ(c.D, size.D);
    EXPECT_EQ(c.F, size.F);
    EXPECT_EQ(c.L, size.L);
    EXPECT_EQ(c.H, size.H);
    EXPECT_EQ(c.KH, 8);
    EXPECT_EQ(c.tied, size.tied);
    EXPECT_EQ(c.padded_vocab(), 152576);
    EXPECT_EQ(c.eos, std::vector<int32_t>{151645});
    EXPECT_EQ(c.pad, -1);
  }
}

TEST_F(ModelConfigFile, StopSetComesFromGenerationConfig) {
  write(R"({"eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6})",
        "generation_config.json");
  const ModelConfig c = read(valid_config());
  EXPECT_EQ(c.eos, (std::vector<int32_t>{151645, 151643}));
  EXPECT_EQ(c.pad, 151643);
}

TEST_F(ModelConfigFile, NewerRopeParametersAreRead) {
  Json config = valid_config();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 5e6}, {"rope_type", "default"}};
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(read(config).rope_theta, 5e6);
}

TEST_F(ModelConfigFile, EachRefusalNamesItsKey) {
  const struct {
    const char* key;
    Json value;
  } cases[] = {
      {"model_type", "qwen2"},
      {"model_type", 3},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"attention_bias", "no"},
      {"use_sliding_window", true},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", "yarn"},
      {"rope_theta", -1},
      {"rope_theta", "1e6"},
      {"rope_theta", 1e300},
      {"quantization_config", {{"bits", 4}}},
      {"num_key_value_heads", 4},
      {"num_key_value_heads", 0},
      {"num_attention_heads", 36},
      {"num_attention_heads", 128},
      {"head_dim", 127},
      {"head_dim", 100000},
      {"hidden_size", 4104},
      {"hidden_size", -4096},
      {"hidden_size", 4096.5},
      {"hidden_size", "4096"},
      {"hidden_size", nullptr},
      {"hidden_size", 18446744073709551615ULL},
      {"hidden_size", 9223372036854775807LL},
      {"intermediate_size", 12296},
      {"intermediate_size", Json::array()},
      {"vocab_size", 4294967296LL},
      {"num_hidden_layers", 2147483648LL},
      {"max_position_embeddings", 0},
      {"rms_norm_eps", 0},
      {"tie_word_embeddings", 1},
      {"eos_token_id", -1},
      {"eos_token_id", 151936},
      {"eos_token_id", Json::array()},
      {"eos_token_id", {1, "2"}},
      {"eos_token_id", 18446744073709551615ULL},
      {"pad_token_id", 151936},
  };
  for (const auto& c : cases) {
    Json config = valid_config();
    config[c.key] = c.value;
    const std::string text = defects(config);
    EXPECT_NE(text.find(std::string("config.json: ") + c.key + ":"), std::string::npos)
        << c.key << " = " << c.value.dump() << " gave: " << (text.empty() ? "no error" : text);
  }
}

TEST_F(ModelConfigFile, EachMissingKeyIsNamed) {
  for (const char* key : {"model_type", "hidden_act", "vocab_size", "hidden_size", "head_dim",
                          "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "max_position_embeddings", "rms_norm_eps",
                          "rope_theta", "tie_word_embeddings", "eos_token_id"}) {
    Json config = valid_config();
    config.erase(key);
    EXPECT_NE(defects(config).find(std::string("config.json: ") + key + ": missing"),
              std::string::npos)
        << key;
  }
}

TEST_F(ModelConfigFile, AllDefectsAreReportedAtOnce) {
  Json config = valid_config();
  config["model_type"] = "llama";
  config["hidden_size"] = 5;
  config.erase("vocab_size");
  write("[1]", "generation_config.json");
  const std::string text = defects(config);
  for (const char* part : {"model_type", "hidden_size", "vocab_size", "generation_config.json"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
}

TEST_F(ModelConfigFile, MalformedFilesAreInputErrors) {
  for (const char* text : {"", "{", "[]", "null", "{\"a\":1,\"a\":2}", "{\"a\": 1e999}", "\xff"}) {
    write(text);
    EXPECT_THROW(read_model_config(dir_.path()), InputError) << "config: " << text;
  }
  EXPECT_THROW(read_model_config(dir_.path() / "missing"), InputError);
}

TEST_F(ModelConfigFile, ALinkThatLeadsNowhereIsNotAMissingGenerationConfig) {
  write(valid_config().dump());
  for (const char* target : {"/nowhere", "generation_config.json"}) {
    std::filesystem::create_symlink(target, dir_.path() / "generation_config.json");
    EXPECT_THROW(read_model_config(dir_.path()), InputError) << target;
    std::filesystem::remove(dir_.path() / "generation_config.json");
  }
}
