#include "local_rank.h"

#include <unistd.h>

#include "rlk/base/error.h"
#include "wiring.h"

namespace rlk {
namespace {

constexpr std::chrono::minutes kTimeout{10};  // of a wait for other ranks, of which there are none
constexpr uint64_t kHostArena = 1 << 20;      // beside device memory nothing is shared here
constexpr uint64_t kAlignment = 256;

std::unique_ptr<World> open_host_world(uint64_t arena_bytes) {
  const int fd = shm_world_create(1, arena_bytes);
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } const close{fd};  // the mapping keeps the memory
  return shm_world_open(fd, 0, kTimeout);
}

// Weights, what the caller adds, and room for each allocation's alignment.
uint64_t arena_bytes(const ModelConfig& m, uint64_t shared_bytes) {
  const auto allocations = static_cast<uint64_t>(2 * m.L + 2);
  return weight_bytes(m) + shared_bytes + allocations * kAlignment;
}

}  // namespace

void check_sampling(const SamplingParams& sampling, const ModelConfig& m) {
  if (sampling.top_k > m.vocab)
    throw InputError("--top-k " + std::to_string(sampling.top_k),
                     "must be -1 or from 1 to the vocabulary's " + std::to_string(m.vocab));
}

uint64_t weight_bytes(const ModelConfig& m) {
  return static_cast<uint64_t>(ArenaLayout(m, kSlices).elements()) * sizeof(bf16);
}

LocalRank::LocalRank(const LocalModel& model, const ModelConfig& config, uint64_t shared_bytes)
    : config_(config),
      ops_(strict_ops(model.backend, 0, model.threads)),
      host_(open_host_world(model.backend == Backend::cpu ? arena_bytes(config, shared_bytes)
                                                          : kHostArena)),
      device_(
          open_device_world(model.backend, *host_, arena_bytes(config, shared_bytes), kTimeout)),
      rope_(upload_rope(ops_, config)),
      tp_(world().group({0}, "tp")),
      weights_(config, world(), topology(), false) {
  Checkpoint(model.dir, config).verify();
  load_weights(weights_, ops_, model.dir, config);
}

Context LocalRank::context() {
  return {.attention = &ops_,
          .ffn = &ops_,
          .logp = &ops_,
          .stream = nullptr,
          .tp = tp_.get(),
          .config = config_,
          .rope = static_cast<const float*>(rope_.ensure(0)),
          .trace = nullptr};
}

}  // namespace rlk
