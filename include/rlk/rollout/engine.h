#pragma once
// The rollout engine of one rank: continuous batching over paged K/V with the model's one forward pass, sampling, and the
// log-prob of every drawn token. All ranks of an engine call generate() with the same requests and get the same results.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "rlk/rollout/scheduler.h"

namespace rlk {

struct SamplingParams {
  float temperature = 1, top_p = 1;
  int32_t top_k = -1;
};

struct GenerateRequest {
  int64_t prompt_index = 0;  // dataset row: part of the sampling key, and what prefix sharing goes by
  int32_t sample_index = 0;
  std::vector<int32_t> prompt;
  int64_t max_new = 0;
  SamplingParams sampling;
};

struct GenerateResult {
  std::vector<int32_t> tokens;  // prompt + response
  std::vector<float> logp;      // [response]
  bool truncated = false;
};

struct RolloutOptions {
  Topology topology;
  int32_t page_size;
  int64_t pages_per_rank, max_running, max_batch_tokens, max_context;
  std::vector<int32_t> stop;    // token ids that end a response
};

class RolloutEngine {
 public:
  // K/V pages come from the world's shared memory, since the engine's other CP ranks read them.
  RolloutEngine(const Context&, World&, const RolloutOptions&);

  // on_token (may be null): request, token, as soon as it is drawn.
  using OnToken = std::function<void(int32_t request, int32_t token)>;
  std::vector<GenerateResult> generate(const WeightsView&, const std::vector<GenerateRequest>&,
                                       uint64_t rollout_seed, uint64_t step,
                                       const OnToken& on_token = nullptr);

  int64_t steps() const { return steps_; }  // forward passes so far
  static int64_t kv_bytes(const ModelConfig&, const RolloutOptions&, int rank);

 private:
  struct Drawn {
    int32_t token;
    float logp;
  };
  // One forward pass over this rank's work; the tokens drawn, in the order of the sampling rows.
  std::vector<Drawn> run(const WeightsView&, const std::vector<Work>&,
                         const std::vector<GenerateRequest>&, const Scheduler&, uint64_t key);
  void copy_pages(const StepPlan&);
  KvCache cache(int layer, const int32_t* page_table) const;

  Context ctx_;
  RolloutOptions options_;
  Topology::Range range_;
  std::unique_ptr<Communicator> cp_;
  std::vector<bf16*> k_, v_;       // [layer] this rank's pages
  int64_t page_elements_;
  int64_t max_pages_ = 0;
  DeviceBuffer acts_, scratch_, head_, tokens_, exchange_;
  Upload upload_;
  int64_t steps_ = 0;
};

}  // namespace rlk
