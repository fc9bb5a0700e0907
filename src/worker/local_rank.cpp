#include "rlk/worker/local_rank.h"

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

uint64_t weight_bytes(const ModelConfig& m) {
  return static_cast<uint64_t>(ArenaLayout(m, kSlices).elements()) * sizeof(bf16);
}

LocalRank::LocalRank(Backend backend, int threads, const ModelConfig& config, uint64_t shared_bytes,
                     const Fill& fill)
    : config_(config),
      ops_(strict_ops(backend, 0, threads)),
      host_(open_host_world(backend == Backend::cpu ? arena_bytes(config, shared_bytes)
                                                    : kHostArena)),
      device_(open_device_world(backend, *host_, arena_bytes(config, shared_bytes), kTimeout)),
      rope_(upload_rope(ops_, config)),
      tp_(world().group({0}, "tp")),
      weights_(config, world(), topology(), false) {
  fill(weights_, ops_);
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
