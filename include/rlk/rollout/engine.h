#pragma once
// The rollout engine of one rank: continuous batching over paged K/V with the model's one forward
// pass, sampling, and the log-prob of every drawn token. All ranks of an engine call generate()
// with the same requests and get the same results.

#include <compare>
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
  // Speed alone: decode steps that are launched before the host reads their tokens, and whether
  // they run as graphs where the backend has them.
  int32_t look_ahead = 8;
  bool graphs = true;
};

class ForwardPass;
class PassMemory;
struct StepRows;

class RolloutEngine {
 public:
  // K/V pages come from the world's shared memory, since the engine's other CP ranks read them.
  RolloutEngine(const Context&, World&, const RolloutOptions&);
  ~RolloutEngine();

  // Nothing may write the weights meanwhile.
  // on_token (may be null): request, token, in order, at most look_ahead tokens late.
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
  // What all decode steps of one generate() share, beside their size.
  struct GraphShape {
    int32_t max_context;
    bool limited;
    auto operator<=>(const GraphShape&) const = default;
  };
  GraphShape graph_shape(const std::vector<GenerateRequest>&) const;
  void capture_graphs(const WeightsView&, const GraphShape&,
                      const std::vector<int32_t>& page_table);
  std::vector<Drawn> run(const WeightsView&, StepRows, const GraphShape&,
                         const std::vector<int32_t>& page_table, int32_t steps);
  // Of every home, in order: what its Works with draws drew.
  std::vector<std::vector<Outcome>> outcomes(const StepPlan&, const std::vector<Drawn>& mine,
                                             std::vector<GenerateResult>&, const OnToken&);
  std::vector<Drawn> exchange(const std::vector<Drawn>& mine, int64_t each);
  std::unique_ptr<ForwardPass> make_pass();
  void reserve_memory();
  int64_t most_rows() const;  // of one home's decode step
  void copy_pages(const StepPlan&);
  KvCache cache(int layer, const int32_t* page_table) const;
  bool uses_graphs() const;

  Context ctx_;
  Stream own_stream_ = nullptr;  // where the context has none
  RolloutOptions options_;
  Topology::Range range_;
  std::unique_ptr<Communicator> cp_;
  std::vector<bf16*> k_, v_;  // [layer] this rank's pages
  int64_t page_elements_;
  int64_t max_pages_;
  std::unique_ptr<PassMemory> memory_;
  std::unique_ptr<ForwardPass> any_;  // what no graph was captured for
  std::map<std::pair<GraphShape, int64_t>, std::unique_ptr<ForwardPass>> graphs_;  // by rows
  DeviceBuffer exchange_;
  std::map<int64_t, uint64_t> replays_;
  uint64_t eager_decodes_ = 0;
};

}  // namespace rlk
