#pragma once
// A model directory as a test uses it: config, weights through a TensorReader, and contexts over a world of ranks.

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

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

// The CPU side of one rank: ops, rope table and a context for its training layout.
struct RankModel {
  RankModel(World& world, const ModelConfig& model, const Topology& layout, bool rollout_slices)
      : config(model),
        topology(layout),
        rope(rope_table(model, 1024)),
        tp(world.group(layout.tp_group(world.rank()), "tp")),
        weights(model, world, layout, rollout_slices) {
    const Ops& ops = cpu_ops(1);
    context = {.attention = &ops, .ffn = &ops, .logp = &ops, .stream = nullptr, .tp = tp.get(),
               .config = model, .rope = rope.data(), .trace = nullptr};
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
