#pragma once
// The training engine of one rank: scores trajectories and makes optimizer updates, layer by layer
// over super-batches (R7). All ranks call the same methods with the same trajectory.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/data/trajectory.h"
#include "rlk/model/backward.h"
#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "rlk/train/grpo.h"
#include "rlk/train/optimizer.h"
#include "rlk/train/super_batch.h"

namespace rlk {

struct TrainerOptions {
  Topology topology;
  GrpoOptions grpo;
  AdamWOptions adamw;
  float temperature, top_p;
  int32_t top_k;
  int64_t super_batch_tokens;
  int64_t max_tokens;  // rows of logits at once in a scoring pass
  int32_t page_size;
  bool recompute;            // keep one layer's activations and run its forward pass again
  bool scores_only = false;  // no gradients and no optimizer state: update() must not be called
};

struct UpdateResult {
  double gradient_norm = 0;
  double forward_s = 0, backward_s = 0, optimizer_s = 0, sync_s = 0;
};

class Trainer {
 public:
  Trainer(const Context&, Weights&, World&, const TrainerOptions&);
  ~Trainer();

  // Log-probs of every response token under `view`, temperature and supports (reference: full
  // vocabulary) into `which` of every sample. Forward only.
  void score(const WeightsView& view, bool reference, std::vector<Sample>&,
             std::vector<float> Sample::*which);

  // One optimizer update over samples [first, first + count): forward, train_logp of those samples,
  // loss, backward, reduction, AdamW, weight sync. t counts updates from 1. token_gradient
  // overrides the loss's derivative (cross-entropy warm start, golden tests): dLoss/dlogp of
  // response token j of sample i.
  using TokenGradient = std::function<double(int i, int j, float logp)>;
  UpdateResult update(std::vector<Sample>&, int first, int count, int64_t t,
                      const TokenGradient& token_gradient = nullptr);

  Optimizer& optimizer() { return *optimizer_; }

 private:
  struct Pass;

  void upload(Pass&, const std::vector<Sample>&, const SuperBatch&, bool reference);
  void forward(Pass&, const WeightsView&, bool keep);
  void logits(Pass&, const WeightsView&, int64_t begin, int64_t end);
  void share_logp(const Pass&, const std::vector<float>& mine, std::vector<Sample>&,
                  std::vector<float> Sample::*which);
  void backward(Pass&, const WeightsView&, const std::vector<float>& g, bool accumulate);
  void set_trace_rows(Pass&, const std::vector<Sample>&);

  Context ctx_;
  Weights& weights_;
  TrainerOptions options_;
  Topology::Range range_;
  ArenaLayout grad_layout_;
  std::unique_ptr<Communicator> cp_;
  std::unique_ptr<Optimizer> optimizer_;
  float*
      layer_grads_[2];  // shared: one layer's gradients; two, so that one barrier a layer is enough
  float* global_grads_;  // shared: embedding, final norm, head
  DeviceBuffer acts_, residuals_, scratch_, pages_, gathered_, backward_, head_, logp_;
  Upload upload_;
};

}  // namespace rlk
