#pragma once
// What a rank is made of, whether it belongs to a run (rank.h) or works alone
// (rlk/worker/local_rank.h).

#include <chrono>
#include <memory>

#include "rlk/comm/world.h"
#include "rlk/device/ops.h"
#include "rlk/model/memory.h"
#include "rlk/plan/plan.h"

namespace rlk {

// The backend's strict ops, not counted. Error when this binary lacks the backend.
const Ops& strict_ops(Backend, int device, int threads);

// Device memory that ranks share; null on the CPU, where `host` serves both.
std::unique_ptr<World> open_device_world(Backend, World& host, uint64_t arena_bytes,
                                         std::chrono::milliseconds timeout);

// The rope table, on the device, since every rope op reads it.
DeviceBuffer upload_rope(const Ops&, const ModelConfig&);

}  // namespace rlk
