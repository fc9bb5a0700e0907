#pragma once
// One rank with a synthetic model, as a benchmark of the engines needs it: world, ops, weights,
// context. Owns them; made once a process (the counted ops are process-wide).

#include <memory>
#include <string>

#include "rlk/comm/world.h"
#include "rlk/model/forward.h"
#include "rlk/model/memory.h"
#include "rlk/model/weights.h"

namespace rlk::bench {

class EngineRig {
 public:
  // arena_bytes: beside the weights, what the engines will ask the world for.
  EngineRig(const ModelConfig&, const std::string& backend, uint64_t seed, size_t arena_bytes);
  ~EngineRig();
  EngineRig(const EngineRig&) = delete;
  EngineRig& operator=(const EngineRig&) = delete;

  static constexpr Topology kAlone{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1};

  World& world() { return device_ ? *device_ : *host_; }
  WeightsView view() const { return weights->view({0, kSlices}); }

  const Ops& ops;

 private:
  int fd_;
  std::unique_ptr<World> host_, device_;
  std::unique_ptr<Communicator> tp_;
  DeviceBuffer rope_;

 public:
  std::unique_ptr<Weights> weights;
  Context context;
};

}  // namespace rlk::bench
