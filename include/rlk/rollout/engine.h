#pragma once
// The rollout engine of one rank: continuous batching over paged K/V with the model's one forward
// pass, sampling, and the log-prob of every drawn token. All ranks of an engine call generate()
// with the same requests and get the same results.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/model/forward.h"
#include "rlk/model/memory.h"
#include "rlk/rollout/scheduler.h"

namespace rlk {

struct SamplingParams {
  float temperature = 1, top_p = 1;
  int32_t top_k = -1;
};

struct GenerateRequest {
  int64_t prompt_index =
      0;  // dataset row: part of the sampling key, and what prefix sharing goes by
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
  std::vector<int32_t> stop;  // token ids that end a response
};

class ForwardPass;
struct Drawn;
struct StepRows;

class RolloutEngine {
 public:
  // K/V pages come from the world's shared memory, since the engine's other CP ranks read them.
  RolloutEngine(const Context&, World&, const RolloutOptions&);
  ~RolloutEngine();

  // on_token (may be null): request, token, as soon as it is drawn.
  using OnToken = std::function<void(int32_t request, int32_t token)>;
  std::vector<GenerateResult> generate(const WeightsView&, const std::vector<GenerateRequest>&,
                                       uint64_t rollout_seed, uint64_t step,
                                       const OnToken& on_token = nullptr);

  // Sizes of decode steps that are to have a graph (device backends), those that have one, how
  // often each was replayed, and decode steps that ran without one.
  std::vector<int64_t> graph_sizes() const;
  std::vector<int64_t> captured_sizes() const;
  const std::map<int64_t, uint64_t>& graph_replays() const { return replays_; }
  uint64_t eager_decodes() const { return eager_decodes_; }
  static int64_t kv_bytes(const ModelConfig&, const RolloutOptions&, int rank);

 private:
  std::vector<Drawn> run(const WeightsView&, StepRows, const std::vector<int32_t>& page_table);
  void capture_graphs(const WeightsView&, bool limited, const std::vector<int32_t>& page_table);
  void copy_pages(const StepPlan&);
  KvCache cache(int layer, const int32_t* page_table) const;
  bool uses_graphs() const;

  Context ctx_;
  RolloutOptions options_;
  Topology::Range range_;
  std::unique_ptr<Communicator> cp_;
  std::vector<bf16*> k_, v_;  // [layer] this rank's pages
  int64_t page_elements_;
  int64_t max_pages_;
  std::unique_ptr<ForwardPass> any_;  // prefill and mixed steps
  std::map<std::pair<int64_t, bool>, std::unique_ptr<ForwardPass>> graphs_;  // by (rows, limited)
  DeviceBuffer exchange_;
  std::map<int64_t, uint64_t> replays_;
  uint64_t eager_decodes_ = 0;
};

}  // namespace rlk
