#pragma once
// A rank's weights: one bf16 arena in virtual-slice-major order, holding the union of its training
// and its rollout slices (R0 makes them nested). Views borrow the arena. Loading reads only the
// rank's own rectangles of each tensor.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/device/ops.h"
#include "rlk/model/tensors.h"

namespace rlk {

struct LayerWeights {
  const bf16 *input_norm, *qkv, *q_norm, *k_norm, *o, *post_norm, *gate_up, *down;
};

// The weights of `range` as an engine sees them.
struct WeightsView {
  Topology::Range range;
  const bf16* embed[kSlices];  // all 8 slices: own memory where held, else another rank's
  std::vector<LayerWeights> layer;
  const bf16* final_norm;
  const bf16* head;  // first slice of the range
};

// Reads rows [row0, row0+rows) and columns [col0, col0+cols) of a named tensor into `to`
// (row-major, cols wide).
using TensorReader = std::function<void(const TensorSpec&, int64_t row0, int64_t rows, int64_t col0,
                                        int64_t cols, bf16* to)>;

// Writes the same rectangle to device memory `to`.
using TensorFill = TensorReader;

class Weights {
 public:
  // Allocates the arena in the world's shared memory: every rank makes the same calls.
  Weights(const ModelConfig&, World&, const Topology&, bool with_rollout_slices);

  // Every tensor slice of this rank, from the host or made in place. Collective over the world.
  void load(const Ops&, const TensorReader&);
  void fill(const Ops&, const TensorFill&);

  Topology::Range range() const { return range_; }
  const ArenaLayout& layout() const { return layout_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  bf16* arena() const { return arena_; }
  bf16* at(const TensorSpec& tensor, int slice) const;  // slice is virtual, in range()
  // The same place in the arena of world rank `rank`, which must hold the slice.
  const bf16* at_rank(int rank, const TensorSpec& tensor, int slice) const;

  WeightsView view(Topology::Range range) const;

  // Pulls every unit this rank holds but does not own from its owner (rank of the TP shard, and CP
  // index, that owns it). Collective over the world; ends with every rank's arena current.
  void sync(const Ops&, Stream);

 private:
  Topology::Range range_of(int rank) const;

  ModelConfig config_;
  Topology topology_;
  bool with_rollout_;
  World& world_;
  std::unique_ptr<Communicator> all_;
  Topology::Range range_;
  ArenaLayout layout_;
  std::vector<TensorSpec> tensors_;
  bf16* arena_;
};

}  // namespace rlk
