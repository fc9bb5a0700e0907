#pragma once
// A model directory as a test uses it: config, weights through a TensorReader, and contexts over a
// world of ranks.

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/philox.h"
#include "rlk/base/safetensors.h"
#include "rlk/comm/world.h"
#include "rlk/model/forward.h"
#include "rlk/model/weights.h"
#include "rlk/profile/model_config.h"

namespace rlk::test {

// Rectangles of a single-file bf16 checkpoint.
inline TensorReader read_from(const SafetensorsFile& file) {
  return [&file](const TensorSpec& t, int64_t row0, int64_t rows, int64_t col0, int64_t cols,
                 bf16* to) {
    const TensorInfo* info = file.find(t.name);
    if (!info || info->dtype != DType::bf16) throw Error("no bf16 tensor " + t.name);
    const auto* from = reinterpret_cast<const bf16*>(file.data(*info));
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * cols, from + (row0 + r) * t.cols + col0, cols * sizeof(bf16));
  };
}

// Two layers, 8 KV heads, H query heads of 16, vocabulary 300 (padded to 1024).
inline ModelConfig small_model(int64_t H, bool tied) {
  ModelConfig m;
  m.vocab = 300;
  m.D = 128;
  m.F = 256;
  m.L = 2;
  m.H = H;
  m.KH = 8;
  m.Dh = 16;
  m.max_position = 256;
  m.tied = tied;
  m.eos = {1};
  return m;
}

// Pseudo-random weights that depend on (tensor, row, column) alone. `tensors` outlives the reader.
inline TensorReader random_reader(const std::vector<TensorSpec>& tensors) {
  return [&tensors](const TensorSpec& t, int64_t row0, int64_t rows, int64_t col0, int64_t cols,
                    bf16* to) {
    const auto seed = static_cast<uint64_t>(&t - tensors.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const uint64_t bits = mix64(seed ^ mix64((row0 + r) * t.cols + col0 + c));
        const float u = static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
        to[r * cols + c] = to_bf16(t.vector ? 1.0f + 0.2f * u : 0.1f * u);
      }
  };
}

// The CPU side of one rank: ops, rope table and a context for its training layout.
struct RankModel {
  RankModel(World& world, const ModelConfig& model, const Topology& layout, bool rollout_slices)
      : config(model),
        topology(layout),
        rope(rope_table(model, 1024)),
        tp(world.group(layout.tp_group(world.rank()), "tp")),
        weights(model, world, layout, rollout_slices) {
    const Ops& ops = cpu_ops(1);
    context = {.attention = &ops,
               .ffn = &ops,
               .logp = &ops,
               .stream = nullptr,
               .tp = tp.get(),
               .config = model,
               .rope = rope.data(),
               .trace = nullptr};
  }
  ModelConfig config;
  Topology topology;
  std::vector<float> rope;
  std::unique_ptr<Communicator> tp;
  Weights weights;
  Context context;
};

// A world of this process alone.
struct LoneWorld {
  explicit LoneWorld(size_t bytes)
      : fd(shm_world_create(1, bytes)), world(shm_world_open(fd, 0, std::chrono::seconds(60))) {}
  ~LoneWorld() { close(fd); }
  int fd;
  std::unique_ptr<World> world;
};

}  // namespace rlk::test
