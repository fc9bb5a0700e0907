#include "engine_rig.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "rlk/base/error.h"
#include "rlk/data/synthetic.h"
#include "rlk/device/counted.h"

namespace rlk::bench {
namespace {

constexpr std::chrono::milliseconds kTimeout{60'000};

const Ops& backend_ops(const std::string& backend) {
  if (backend == "cpu")
    return cpu_ops(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
#ifdef RLK_CUDA
  return cuda_ops(0);
#else
  throw InputError("rlk bench", "this binary has no CUDA backend",
                   "build with the cuda preset, or --backend cpu");
#endif
}

size_t arena_of(const ModelConfig& m, size_t more) {
  return ArenaLayout(m, kSlices).elements() * sizeof(bf16) + more + (size_t{1} << 20);
}

}  // namespace

EngineRig::EngineRig(const ModelConfig& m, const std::string& backend, uint64_t seed,
                     size_t arena_bytes)
    : ops(counted(backend_ops(backend), backend_ops(backend), OpModule::run)),
      fd_(shm_world_create(1, backend == "cpu" ? arena_of(m, arena_bytes) : size_t{1} << 20)),
      host_(shm_world_open(fd_, 0, kTimeout)),
      rope_(ops) {
#ifdef RLK_CUDA
  if (backend == "cuda") device_ = ipc_world_open(*host_, arena_of(m, arena_bytes), kTimeout);
#endif
  tp_ = world().group({0}, "tp");
  const std::vector<float> rope = rope_table(m, m.max_position);
  const auto bytes = static_cast<int64_t>(rope.size() * sizeof(float));
  ops.copy(nullptr, rope_.ensure(bytes), rope.data(), static_cast<size_t>(bytes));
  weights = std::make_unique<Weights>(m, world(), kAlone, true);
  weights->fill(ops, [&](const TensorSpec& t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         bf16* to) {
    const SyntheticRule rule = synthetic_rule(seed, t.name, t.vector);
    ops.init_uniform(
        nullptr, {to, rows, cols, row * t.cols + col, t.cols, rule.key, rule.centre, rule.step});
  });
  const Ops& plain = backend_ops(backend);
  context = {.attention = &counted(plain, plain, OpModule::attention),
             .ffn = &counted(plain, plain, OpModule::ffn),
             .logp = &counted(plain, plain, OpModule::logp),
             .stream = nullptr,
             .tp = tp_.get(),
             .config = m,
             .rope = static_cast<const float*>(rope_.ensure(0)),
             .trace = nullptr};
}

EngineRig::~EngineRig() {
  ops.synchronize(nullptr);
  close(fd_);
}

}  // namespace rlk::bench
