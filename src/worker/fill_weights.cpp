#include "rlk/worker/fill_weights.h"

#include "rlk/data/checkpoint.h"
#include "rlk/data/synthetic.h"

namespace rlk {

void load_weights(Weights& weights, const Ops& ops, const std::filesystem::path& dir,
                  const ModelConfig& m) {
  const Checkpoint checkpoint(dir, m);
  weights.load(ops, [&](const TensorSpec& t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        bf16* to) {
    if (t.vector)  // checkpoints see a vector as a column
      checkpoint.read(t.name, col, cols, 0, 1, to);
    else
      checkpoint.read(t.name, row, rows, col, cols, to);
  });
}

void make_weights(Weights& weights, const Ops& ops, uint64_t seed) {
  weights.fill(ops, [&](const TensorSpec& t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        bf16* to) {
    const SyntheticRule rule = synthetic_rule(seed, t.name, t.vector);
    ops.init_uniform(nullptr, {.w = to,
                               .rows = rows,
                               .cols = cols,
                               .first = row * t.cols + col,
                               .ld = t.cols,
                               .key = rule.key,
                               .centre = rule.centre,
                               .step = rule.step});
  });
}

}  // namespace rlk
