#include "rlk/data/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include "data/temp_dir.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/base/signals.h"
#include "rlk/data/export.h"
#include "rlk/data/synthetic.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 7;

ModelConfig small_config(bool tied) {
  ModelConfig c;
  c.vocab = 40;
  c.D = 16;
  c.F = 24;
  c.L = 2;
  c.H = c.KH = 8;
  c.Dh = 4;
  c.tied = tied;
  c.eos = {1};
  return c;
}

std::vector<bf16> whole(const CheckpointTensor& t) {
  std::vector<bf16> data(static_cast<size_t>(t.elements()));
  synthetic_tensor(kSeed, t, 0, t.rows, 0, t.columns, data.data());
  return data;
}

void write(const ModelConfig& config, const fs::path& out, uint64_t shard_bytes = 5'000'000'000) {
  std::vector<bf16> buffer;
  export_checkpoint(config,
                    {out, "", {{"config.json", "{\"torch_dtype\": \"bfloat16\"}\n"}}, shard_bytes},
                    [&](const CheckpointTensor& t) {
                      buffer = whole(t);
                      return std::span<const bf16>(buffer);
                    });
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// The tensors of a safetensors file, changed by `edit`, written back.
struct Tensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};
void edit_file(const fs::path& path, const std::function<void(std::vector<Tensor>&)>& edit) {
  std::vector<Tensor> tensors;
  {
    const SafetensorsFile file(path);
    for (const TensorInfo& t : file.tensors())
      tensors.push_back(
          {t.name, t.dtype, t.shape, {file.data(t), file.data(t) + (t.end - t.begin)}});
  }
  edit(tensors);
  std::vector<TensorSource> sources;
  for (const Tensor& t : tensors) sources.push_back({t.name, t.dtype, t.shape, t.data.data()});
  write_safetensors(path, sources);
}
Tensor& named(std::vector<Tensor>& tensors, const std::string& name) {
  for (Tensor& t : tensors)
    if (t.name == name) return t;
  throw std::runtime_error(name);
}

TEST(Checkpoint, ListsTheTensorsOfQwen3) {
  EXPECT_EQ(checkpoint_tensors(model_of_shape("qwen3-8b", "shape")).size(), 399u);
  EXPECT_EQ(checkpoint_tensors(model_of_shape("qwen3-0.6b", "shape")).size(), 310u);
  expect_contains(error_of([] { model_of_shape("qwen3-9b", "shape"); }),
                  "must be one of qwen3-0.6b");
  EXPECT_EQ(model_of_shape(RLK_SOURCE_DIR "/profiles/tiny/config.json", "shape").vocab, 419);
}

TEST(Checkpoint, EveryRangeOfEveryTensorEqualsTheSource) {
  for (const bool tied : {false, true}) {
    for (const uint64_t shard_bytes : {uint64_t{1} << 40, uint64_t{3000}}) {
      const TempDir dir;
      const ModelConfig config = small_config(tied);
      write(config, dir / "m", shard_bytes);
      EXPECT_EQ(fs::exists(dir / "m/model.safetensors.index.json"), shard_bytes == 3000);
      const Checkpoint checkpoint(dir / "m", config);
      checkpoint.verify();
      for (const CheckpointTensor& t : checkpoint_tensors(config)) {
        const std::vector<bf16> source = whole(t);
        std::vector<bf16> all(source.size());
        checkpoint.read(t.name, 0, t.rows, 0, t.columns, all.data());
        EXPECT_EQ(std::memcmp(all.data(), source.data(), all.size() * 2), 0) << t.name;
        const int64_t row = t.rows / 4, rows = t.rows / 2, column = t.columns / 4,
                      columns = t.columns - column;
        std::vector<bf16> part(static_cast<size_t>(rows * columns)), made(part.size());
        checkpoint.read(t.name, row, rows, column, columns, part.data());
        synthetic_tensor(kSeed, t, row, rows, column, columns, made.data());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            ASSERT_EQ(part[r * columns + c].bits, source[(row + r) * t.columns + column + c].bits)
                << t.name << " [" << r << ", " << c << "]";
          }
        }
        EXPECT_EQ(std::memcmp(part.data(), made.data(), part.size() * 2), 0) << t.name;
      }
    }
  }
}

TEST(Checkpoint, ExportLoadExportGivesTheSameBytes) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  write(config, dir / "a", 3000);
  const Checkpoint checkpoint(dir / "a", config);
  std::vector<bf16> buffer;
  export_checkpoint(config, {dir / "b", dir / "a", {}, 3000}, [&](const CheckpointTensor& t) {
    buffer.resize(static_cast<size_t>(t.elements()));
    checkpoint.read(t.name, 0, t.rows, 0, t.columns, buffer.data());
    return std::span<const bf16>(buffer);
  });
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(dir / "a")) {
    ++files;
    EXPECT_EQ(read_file(entry.path()), read_file(dir / "b" / entry.path().filename()))
        << entry.path();
  }
  EXPECT_EQ(files, static_cast<size_t>(std::distance(fs::directory_iterator(dir / "b"), {})));
}

TEST(Checkpoint, ConvertsF16AndF32ByRoundingToNearestEven) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  write(config, dir / "m");
  const std::vector<float> values = {1.0f, 1.00390625f, 1.01171875f, -3.4e38f, 1e-40f, 0.1f};
  std::vector<uint16_t> halves = {0x3C00, 0x0001, 0x83FF, 0x7BFF, 0xBC01, 0x3555};
  edit_file(dir / "m/model.safetensors", [&](std::vector<Tensor>& tensors) {
    Tensor& norm = named(tensors, "model.norm.weight");
    norm.dtype = DType::f32;
    norm.data.assign(16 * 4, std::byte{0});
    std::memcpy(norm.data.data(), values.data(), values.size() * 4);
    Tensor& other = named(tensors, "model.layers.0.input_layernorm.weight");
    other.dtype = DType::f16;
    std::memcpy(other.data.data(), halves.data(), halves.size() * 2);
  });
  const Checkpoint checkpoint(dir / "m", config);
  std::vector<bf16> out(16);
  checkpoint.read("model.norm.weight", 0, 16, 0, 1, out.data());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i].bits, to_bf16(values[i]).bits) << i;
  EXPECT_EQ(out[1].bits, 0x3F80);  // ties to even, downwards
  EXPECT_EQ(out[2].bits, 0x3F82);  // and upwards
  const std::vector<float> exact = {1.0f,     0x1p-24f,           -0x3FFp-24f,
                                    65504.0f, -(1.0f + 0x1p-10f), 0x1.554p-2f};
  checkpoint.read("model.layers.0.input_layernorm.weight", 0, 16, 0, 1, out.data());
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(out[i].bits, to_bf16(exact[i]).bits) << i;
}

TEST(Checkpoint, ReportsAllDefectsTogether) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  write(config, dir / "m");
  edit_file(dir / "m/model.safetensors", [](std::vector<Tensor>& tensors) {
    named(tensors, "model.layers.1.mlp.up_proj.weight").name = "model.layers.1.mlp.up.weight";
    named(tensors, "model.norm.weight").dtype = DType::i8;
    named(tensors, "model.norm.weight").shape = {32};
    named(tensors, "lm_head.weight").shape = {16, 40};
  });
  const std::string text = error_of([&] { Checkpoint(dir / "m", config); });
  expect_contains(text, "tensor model.layers.1.mlp.up_proj.weight: missing");
  expect_contains(text, "tensor model.layers.1.mlp.up.weight: extra");
  expect_contains(text, "tensor model.norm.weight: shape [32]; must be [16]");
  expect_contains(text, "tensor model.norm.weight: dtype I8; must be BF16, F16 or F32");
  expect_contains(text, "tensor lm_head.weight: shape [16, 40]; must be [40, 16]");
}

TEST(Checkpoint, ATiedHeadMustEqualTheEmbedding) {
  const TempDir dir;
  const ModelConfig tied = small_config(true);
  write(tied, dir / "m");
  const fs::path file = dir / "m/model.safetensors";
  edit_file(file, [](std::vector<Tensor>& tensors) {
    Tensor head = named(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
  });
  EXPECT_EQ(error_of([&] { Checkpoint(dir / "m", tied); }), "accepted");
  edit_file(file, [](std::vector<Tensor>& tensors) {
    named(tensors, "lm_head.weight").data[5] ^= std::byte{1};
  });
  expect_contains(error_of([&] { Checkpoint(dir / "m", tied); }),
                  "tensor lm_head.weight: differs from the embedding");
  EXPECT_EQ(error_of([&] { Checkpoint(dir / "m", small_config(false)); }), "accepted");
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  write(config, dir / "m", 3000);
  const fs::path index = dir / "m/model.safetensors.index.json";
  const std::string original = read_file(index);
  const auto with = [&](const std::function<void(Json&)>& edit) {
    Json json = parse_json(original, "i");
    edit(json["weight_map"]);
    write_file_atomic(index, json.dump());
    return error_of([&] { Checkpoint(dir / "m", config); });
  };
  const std::string first = parse_json(original, "i")["weight_map"]["model.norm.weight"];
  EXPECT_EQ(with([](Json&) {}), "accepted");
  expect_contains(with([](Json& map) { map.erase("model.norm.weight"); }),
                  "tensor model.norm.weight: is not in model.safetensors.index.json");
  expect_contains(
      with([](Json& map) { map["model.norm.weight"] = map["model.embed_tokens.weight"]; }),
      "tensor model.norm.weight: model.safetensors.index.json says ");
  expect_contains(with([](Json& map) { map["model.norm.weight"] = "../x"; }),
                  "must be the name of a file in this folder");
  expect_contains(with([](Json& map) { map["model.norm.weight"] = "absent.safetensors"; }),
                  "absent.safetensors: No such file");
  expect_contains(with([&](Json& map) { map["model.absent"] = first; }),
                  "index.json: weight_map.model.absent: " + first + " has no such tensor");
  write_file_atomic(index, "{}");
  expect_contains(error_of([&] { Checkpoint(dir / "m", config); }),
                  "weight_map: must be an object");
  write_file_atomic(index, original);
  fs::copy_file(dir / "m" / first, dir / "m/copy.safetensors");
  expect_contains(with([](Json& map) { map["model.extra"] = "copy.safetensors"; }),
                  "duplicate, also in");
  fs::copy_file(dir / "m/copy.safetensors", dir / "m/model.safetensors");
  expect_contains(error_of([&] { Checkpoint(dir / "m", config); }), "has both");
  expect_contains(error_of([&] { Checkpoint(dir.path(), config); }), "has neither");
}

TEST(Checkpoint, DamagedFilesAreRefusedWithNameAndPlace) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  write(config, dir / "m");
  const fs::path file = dir / "m/model.safetensors";
  const std::string original = read_file(file);
  const auto damage = [&](const std::function<void(std::string&)>& edit) {
    std::string bytes = original;
    edit(bytes);
    std::ofstream(file, std::ios::binary) << bytes;
    return error_of([&] { Checkpoint(dir / "m", config).verify(); });
  };
  EXPECT_EQ(damage([](std::string&) {}), "accepted");
  expect_contains(damage([](std::string& b) { b.pop_back(); }), file.string());
  expect_contains(damage([](std::string& b) { b.back() ^= 1; }),
                  "tensor lm_head.weight: damaged: its SHA-256");
  // Two tensors of the same shape that change places.
  expect_contains(damage([](std::string& b) {
                    const size_t gate = b.rfind("model.layers.0.mlp.gate_proj.weight\":{");
                    b.replace(gate, 36, "model.layers.0.mlp.up_proj.weight\":{ ");
                    const size_t up = b.rfind("model.layers.0.mlp.up_proj.weight\":{\"");
                    b.replace(up, 34, "model.layers.0.mlp.gate_proj.weight\"");
                  }),
                  file.string());
  expect_contains(damage([](std::string& b) {
                    b[b.size() - 1] = '\x7f';
                    b[b.size() - 2] = '\x80';
                  }),
                  "element [39, 15] is not finite");
  // No flipped bit goes unnoticed, but for those of the format tag at the beginning.
  const size_t format_end = original.find("\"pt\"") + 4;
  for (size_t at = format_end; at < original.size(); at += 67) {
    EXPECT_NE(damage([&](std::string& b) { b[at] ^= 4; }), "accepted") << "byte " << at;
  }
}

TEST(Export, LeavesNothingBehindWhenItFails) {
  const TempDir dir;
  const ModelConfig config = small_config(false);
  fs::create_directory(dir / "there");
  expect_contains(error_of([&] { write(config, dir / "there"); }), "exists already");
  EXPECT_THROW(export_checkpoint(config, {dir / "m", "", {{"config.json", "{}"}}},
                                 [&](const CheckpointTensor&) -> std::span<const bf16> {
                                   throw Error("disk full");
                                 }),
               Error);
  expect_contains(error_of([&] {
                    export_checkpoint(
                        config, {dir / "m", dir.path(), {}},
                        [](const CheckpointTensor&) { return std::span<const bf16>(); });
                  }),
                  "has no config.json");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(Export, AnInterruptionLeavesNothingAndNohupIsHeeded) {
  const ModelConfig config = small_config(false);
  const TempDir dir;
  std::vector<bf16> buffer;
  const auto export_and_raise = [&](int signal) {
    export_checkpoint(config, {dir / "m", "", {{"config.json", "{}"}}},
                      [&](const CheckpointTensor& t) {
                        raise(signal);
                        buffer = whole(t);
                        return std::span<const bf16>(buffer);
                      });
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_THROW(export_and_raise(signal), Interrupted);
    EXPECT_TRUE(fs::is_empty(dir.path()));
  }
  const auto before = signal(SIGHUP, SIG_IGN);
  export_and_raise(SIGHUP);
  signal(SIGHUP, before);
  EXPECT_TRUE(fs::exists(dir / "m/model.safetensors"));
}

TEST(Export, ConfigSaysBf16) {
  const ModelConfig config = small_config(false);
  std::vector<bf16> buffer;
  const auto exported = [&](const std::string& source) {
    const TempDir dir;
    export_checkpoint(config, {dir / "m", "", {{"config.json", source}}},
                      [&](const CheckpointTensor& t) {
                        buffer = whole(t);
                        return std::span<const bf16>(buffer);
                      });
    return read_file(dir / "m/config.json");
  };
  const auto compact = [&](const std::string& source) {
    return parse_json(exported(source), "c").dump();
  };
  EXPECT_EQ(compact(R"({"torch_dtype": "float32", "x": 1})"),
            R"({"torch_dtype":"bfloat16","x":1})");
  EXPECT_EQ(compact(R"({"dtype": "float16", "x": 1})"), R"({"dtype":"bfloat16","x":1})");
  EXPECT_EQ(compact(R"({"torch_dtype": null})"), R"({"torch_dtype":"bfloat16"})");
  EXPECT_EQ(compact(R"({"x": 1})"), R"({"x":1,"torch_dtype":"bfloat16"})");
  const std::string right = R"({"x": 1, "torch_dtype":   "bfloat16"})";
  EXPECT_EQ(exported(right), right);
}

TEST(Synthetic, ValuesHaveTheStatedSpread) {
  const CheckpointTensor matrix{"w", 256, 256, false}, norm{"n", 65536, 1, true};
  double sum = 0, squares = 0, low = 9, high = -9;
  for (const bf16 x : whole(matrix)) {
    sum += to_float(x);
    squares += to_float(x) * to_float(x);
  }
  EXPECT_NEAR(sum / 65536, 0, 5e-4);
  EXPECT_NEAR(std::sqrt(squares / 65536), 0.02, 2e-4);
  for (const bf16 x : whole(norm)) {
    low = std::min<double>(low, to_float(x));
    high = std::max<double>(high, to_float(x));
  }
  EXPECT_NEAR(low, 0.75, 0.01);
  EXPECT_NEAR(high, 1.25, 0.01);
}

}  // namespace
}  // namespace rlk
