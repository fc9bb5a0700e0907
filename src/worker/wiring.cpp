#include "wiring.h"

#include <algorithm>

#include "rlk/base/error.h"
#include "rlk/model/forward.h"

namespace rlk {

const Ops& strict_ops(Backend backend, [[maybe_unused]] int device, int threads) {
#ifdef RLK_CUDA
  if (backend == Backend::cuda) return cuda_ops(device);
#endif
  if (backend == Backend::cuda) throw Error("this binary was built without the CUDA backend");
  return cpu_ops(threads);
}

std::unique_ptr<World> open_device_world([[maybe_unused]] Backend backend,
                                         [[maybe_unused]] World& host,
                                         [[maybe_unused]] uint64_t arena_bytes,
                                         [[maybe_unused]] std::chrono::milliseconds timeout) {
#ifdef RLK_CUDA
  // Ranks meet on the device in lockstep; where they do not, the hosts meet first.
  constexpr std::chrono::milliseconds kDeviceWait{20'000};
  if (backend == Backend::cuda)
    return ipc_world_open(host, arena_bytes, std::min(timeout, kDeviceWait));
#endif
  return nullptr;
}

DeviceBuffer upload_rope(const Ops& ops, const ModelConfig& m) {
  const std::vector<float> table = rope_table(m, m.max_position);
  DeviceBuffer buffer(ops);
  const size_t bytes = table.size() * sizeof(float);
  ops.copy(nullptr, buffer.ensure(static_cast<int64_t>(bytes)), table.data(), bytes);
  ops.synchronize(nullptr);
  return buffer;
}

}  // namespace rlk
