// Fingerprints of exported tensors: the rule, and that every slice and byte counts.
#include "rlk/run/fingerprint.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "rlk/base/error.h"
#include "rlk/data/export.h"
#include "rlk/data/synthetic.h"
#include "temp_dir.h"

using namespace rlk;

namespace {

std::vector<uint16_t> counting(size_t n) {
  std::vector<uint16_t> values(n);
  std::iota(values.begin(), values.end(), uint16_t{1});
  return values;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& v, size_t begin, size_t count) {
  return std::as_bytes(std::span(v).subspan(begin, count));
}

constexpr const char* kLayer = "model.layers.0.";

}  // namespace

TEST(Fingerprint, IsTheHashOfPieceHashesInSliceOrder) {
  const std::vector<uint8_t> data(2 * kFingerprintPiece + 100, 7);
  const auto all = std::as_bytes(std::span(data));
  std::string digests;
  const auto piece = [&](size_t begin, size_t n) {
    const Digest d = sha256(data.data() + begin, n);
    digests.append(d.begin(), d.end());
  };
  piece(0, kFingerprintPiece);
  piece(kFingerprintPiece, 100);  // the first slice ends: its last piece is short
  piece(kFingerprintPiece + 100, kFingerprintPiece);
  const size_t first = kFingerprintPiece + 100;
  EXPECT_EQ(hex(fingerprint_slices({all.first(first), all.subspan(first)})),
            hex(sha256(digests.data(), digests.size())));
}

TEST(Fingerprint, RowCutTensorsAreEightRowBlocks) {
  const auto w = counting(16 * 4);
  std::vector<std::span<const std::byte>> slices;
  for (size_t v = 0; v < 8; ++v) slices.push_back(bytes_of(w, v * 8, 8));
  for (const char* name : {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                           "self_attn.v_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight"})
    EXPECT_EQ(hex(fingerprint_exported(std::string(kLayer) + name, w.data(), 16, 4, 2)),
              hex(fingerprint_slices(slices)))
        << name;
}

TEST(Fingerprint, ColumnCutTensorsAreEightColumnBlocks) {
  const auto w = counting(3 * 16);
  std::vector<std::vector<uint16_t>> blocks(8);
  for (size_t v = 0; v < 8; ++v)
    for (size_t r = 0; r < 3; ++r)
      for (size_t c = 0; c < 2; ++c) blocks[v].push_back(w[r * 16 + v * 2 + c]);
  std::vector<std::span<const std::byte>> slices;
  for (const auto& block : blocks) slices.push_back(bytes_of(block, 0, block.size()));
  for (const char* name : {"self_attn.o_proj.weight", "mlp.down_proj.weight"})
    EXPECT_EQ(hex(fingerprint_exported(std::string(kLayer) + name, w.data(), 3, 16, 2)),
              hex(fingerprint_slices(slices)))
        << name;
}

TEST(Fingerprint, VocabularySlicesAreThoseOfThePaddedVocabulary) {
  // 300 rows pad to 1024, so slices hold 128, 128, 44 and no rows.
  const auto w = counting(300 * 2);
  const auto slices = std::vector{bytes_of(w, 0, 256), bytes_of(w, 256, 256), bytes_of(w, 512, 88)};
  EXPECT_EQ(hex(fingerprint_exported("model.embed_tokens.weight", w.data(), 300, 2, 2)),
            hex(fingerprint_slices(slices)));
  EXPECT_EQ(hex(fingerprint_exported("lm_head.weight", w.data(), 300, 2, 2)),
            hex(fingerprint_slices(slices)));
}

TEST(Fingerprint, NormsAreOneSlice) {
  const auto w = counting(12);
  for (const char* name :
       {"model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.k_norm.weight"})
    EXPECT_EQ(hex(fingerprint_exported(name, w.data(), 12, 1, 2)),
              hex(fingerprint_slices({bytes_of(w, 0, 12)})))
        << name;
}

TEST(Fingerprint, OneUlpAnywhereChangesIt) {
  auto w = counting(8 * 8);
  const std::string name = std::string(kLayer) + "mlp.down_proj.weight";
  const Digest before = fingerprint_exported(name, w.data(), 8, 8, 2);
  for (auto& x : w) {
    x ^= 1;
    EXPECT_NE(hex(fingerprint_exported(name, w.data(), 8, 8, 2)), hex(before)) << &x - w.data();
    x ^= 1;
  }
  EXPECT_EQ(hex(fingerprint_exported(name, w.data(), 8, 8, 2)), hex(before));
}

TEST(Fingerprint, UnknownNamesAndUncuttableShapesAreRefused) {
  const auto w = counting(12 * 4);
  EXPECT_THROW(fingerprint_exported("model.layers.0.mlp.router.weight", w.data(), 12, 4, 2),
               InputError);
  EXPECT_THROW(fingerprint_exported("model.layers.0.mlp.up_proj.weight", w.data(), 12, 4, 2),
               InputError);
}

TEST(Fingerprint, ALoadedCheckpointHasThoseOfTheSameWeightsMadeInMemory) {
  ModelConfig config;
  config.vocab = 1500;
  config.D = 64;
  config.F = 128;
  config.L = 1;
  config.H = config.KH = 8;
  config.Dh = 8;
  const test::TempDir dir;
  std::map<std::string, Digest> made;
  std::vector<bf16> whole;
  export_checkpoint(config, {dir.path() / "m", "", {{"config.json", "{}"}}, 100'000},
                    [&](const CheckpointTensor& t) -> std::span<const bf16> {
                      whole.resize(static_cast<size_t>(t.elements()));
                      synthetic_tensor(5, t, 0, t.rows, 0, t.columns, whole.data());
                      made[t.name] =
                          fingerprint_exported(t.name, whole.data(), t.rows, t.columns, 2);
                      return whole;
                    });
  const Checkpoint checkpoint(dir.path() / "m", config);
  EXPECT_GT(checkpoint.files().size(), 2u);
  for (const CheckpointTensor& t : checkpoint_tensors(config)) {
    whole.resize(static_cast<size_t>(t.elements()));
    checkpoint.read(t.name, 0, t.rows, 0, t.columns, whole.data());
    EXPECT_EQ(fingerprint_exported(t.name, whole.data(), t.rows, t.columns, 2), made.at(t.name))
        << t.name;
  }
}
