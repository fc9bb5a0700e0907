#pragma once
// The one rank of a process that works alone: world, weights, context. Owns everything; one thread.

#include <functional>
#include <memory>

#include "rlk/comm/world.h"
#include "rlk/model/forward.h"
#include "rlk/model/memory.h"
#include "rlk/model/weights.h"
#include "rlk/plan/plan.h"

namespace rlk {

class LocalRank {
 public:
  // Puts the model's weights where they belong.
  using Fill = std::function<void(Weights&, const Ops&)>;

  // `shared_bytes`: what engines will take from the world beside the weights. Throws what `fill`
  // throws, and Error when this binary lacks the backend or the device cannot be had.
  LocalRank(Backend, int threads, const ModelConfig&, uint64_t shared_bytes, const Fill& fill);

  // One KV page, as runs choose it; bits do not depend on it.
  static int32_t page_size(Backend backend) { return backend == Backend::cuda ? 128 : 16; }
  static Topology topology() {
    return {.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1, .rollout_cp = 1};
  }

  const Ops& ops() const { return ops_; }
  Context context();
  WeightsView view() const { return weights_.view({0, kSlices}); }
  World& world() const { return *(device_ ? device_ : host_); }
  Weights& weights() { return weights_; }

 private:
  ModelConfig config_;
  const Ops& ops_;
  std::unique_ptr<World> host_, device_;
  DeviceBuffer rope_;
  std::unique_ptr<Communicator> tp_;
  Weights weights_;
};

// Bytes of the weights.
uint64_t weight_bytes(const ModelConfig&);

}  // namespace rlk
