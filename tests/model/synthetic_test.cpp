// A synthetic model is the same in memory, by the op, as in the checkpoint that prepare writes, in
// every layout.

#include "rlk/data/synthetic.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/fork_ranks.h"
#include "model/model_fixture.h"
#include "temp_dir.h"

namespace rlk {
namespace {

constexpr uint64_t kSeed = 11;

void fill(Weights& weights, uint64_t seed) {
  const Ops& ops = cpu_ops(1);
  weights.fill(ops, [&](const TensorSpec& t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        bf16* to) {
    const SyntheticRule rule = synthetic_rule(seed, t.name, t.vector);
    ops.init_uniform(
        nullptr, {to, rows, cols, row * t.cols + col, t.cols, rule.key, rule.centre, rule.step});
  });
}

// "" when the rank's arena is the checkpoint's, both filled through the same layout.
std::string compare_arenas(World& world, const ModelConfig& config, const Topology& layout,
                           const Checkpoint& checkpoint, uint64_t seed) {
  Weights made(config, world, layout, true), read(config, world, layout, true);
  fill(made, seed);
  read.load(cpu_ops(1), [&](const TensorSpec& t, int64_t row, int64_t rows, int64_t col,
                            int64_t cols, bf16* to) {
    if (t.vector)
      checkpoint.read(t.name, col, cols, 0, 1, to);
    else
      checkpoint.read(t.name, row, rows, col, cols, to);
  });
  const int64_t n = made.layout().elements();
  for (int64_t i = 0; i < n; ++i)
    if (made.arena()[i].bits != read.arena()[i].bits) return "element " + std::to_string(i);
  return "";
}

class Synthetic : public testing::TestWithParam<bool> {};

TEST_P(Synthetic, InMemoryIsTheWrittenCheckpointInEveryLayout) {
  const ModelConfig config = test::small_model(16, GetParam());
  const test::TempDir dir;
  write_synthetic_checkpoint(config, kSeed, "", dir.path() / "m");
  const Checkpoint checkpoint(dir.path() / "m", config);
  for (const auto& [tp, rollout] : {std::pair{1, 1}, {2, 8}, {4, 2}, {8, 4}}) {
    const Topology layout{.ranks = 8, .tp = tp, .cp = 8 / tp, .rollout_tp = rollout};
    test::Ranks ranks(8, size_t{64} << 20, std::chrono::seconds(100), [&](World& world) {
      return compare_arenas(world, config, layout, checkpoint, kSeed);
    });
    for (const test::RankEnd& end : ranks.collect(std::chrono::seconds(110))) {
      EXPECT_EQ(end.status, 0);
      EXPECT_EQ(end.text, "") << "tp " << tp << " rollout tp " << rollout;
    }
  }
  const Topology one{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1};
  test::LoneWorld lone(size_t{64} << 20);
  EXPECT_NE(compare_arenas(*lone.world, config, one, checkpoint, kSeed + 1), "");  // another seed
}

INSTANTIATE_TEST_SUITE_P(Models, Synthetic, testing::Bool());

}  // namespace
}  // namespace rlk
