#pragma once
// AdamW on fp32 masters, sharded over the CP group by units (model/tensors.h), and the reduction
// that feeds it: each owner pulls its units of every rank's partial gradient and adds them in tree
// order (R7).

#include <cstdint>
#include <memory>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/model/forward.h"
#include "rlk/model/memory.h"
#include "rlk/model/weights.h"

namespace rlk {

struct AdamWOptions {
  double lr, beta1, beta2, eps, weight_decay, clip_grad;
};

class Optimizer {
 public:
  // Masters start from the current weights. cp: the training CP group. adamw: without it there is
  // the gradient alone, and no step().
  Optimizer(const Context&, Weights&, World&, const Topology&, Communicator& cp, bool adamw);

  // Adds the CP tree over every rank's partial of one storage (layer -1: outside the layers) to the
  // owned gradient, or overwrites it with it. `partial` is this rank's subtree in shared memory.
  // Callers order writers and readers with barriers.
  void reduce(Storage storage, int layer, const float* partial, bool accumulate);

  // Where the backward pass may write the owned gradient itself, since nobody else has a part of
  // it: laid out as the weights' arena. Null where CP cuts the tokens.
  float* whole_gradient() { return topology_.cp == 1 ? gradient_ : nullptr; }

  // Global gradient norm: fp64 tile sums in (tensor, slice, tile) order. Collective over the world.
  double gradient_norm();

  // One update; writes this rank's units of the bf16 weights (Weights::sync spreads them). t counts
  // from 1.
  void step(const AdamWOptions&, int64_t t, double gradient_norm);

  struct OwnedUnit {
    Unit unit;
    int64_t at;  // elements, in the state arrays
  };
  const std::vector<OwnedUnit>& owned() const { return owned_; }
  const float* gradient() const { return gradient_; }
  const float* master() const { return master_; }
  const float* exp_avg() const { return exp_avg_; }
  const float* exp_avg_sq() const { return exp_avg_sq_; }
  static int64_t state_bytes(const ModelConfig&, const Topology&, int rank);

 private:
  const Context& ctx_;
  Weights& weights_;
  Topology topology_;
  Communicator& cp_;
  std::unique_ptr<Communicator> world_;
  Topology::Range range_;
  ArenaLayout layout_;  // of gradient regions
  std::vector<OwnedUnit> owned_;
  std::vector<OwnedUnit> runs_;  // the same, neighbours in the state joined (unit_runs)
  Pieces pieces_;                // of a run in the tensor's slice
  DeviceBuffer state_, tiles_;
  float *gradient_, *master_ = nullptr, *exp_avg_ = nullptr, *exp_avg_sq_ = nullptr;
};

}  // namespace rlk
