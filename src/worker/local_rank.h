#pragma once
// The one rank of a process that works alone: world, weights, context. Owns everything; one thread.

#include <memory>
#include <string>

#include "rlk/comm/world.h"
#include "rlk/data/checkpoint.h"
#include "rlk/model/forward.h"
#include "rlk/model/memory.h"
#include "rlk/model/weights.h"
#include "rlk/worker/local.h"

namespace rlk {

class LocalRank {
 public:
  // `shared_bytes`: what engines will take from the world beside the weights. InputError for a
  // damaged checkpoint.
  LocalRank(const LocalModel&, const ModelConfig&, uint64_t shared_bytes);

  // One KV page, as runs choose it; bits do not depend on it.
  static int32_t page_size(Backend backend) { return backend == Backend::cuda ? 128 : 16; }
  static Topology topology() {
    return {.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1, .rollout_cp = 1};
  }

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

// InputError where the model's vocabulary forbids it.
void check_sampling(const SamplingParams&, const ModelConfig&);

// Bytes of the weights.
uint64_t weight_bytes(const ModelConfig&);

}  // namespace rlk
