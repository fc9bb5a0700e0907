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
  int64_t max_tokens;  // rows of logits at once, but at least one leaf's in an update
  int32_t page_size;
  // Of the layers' activations, as many layers' as fit are kept, the last ones; the others' forward
  // passes run again. At least one layer's and the residuals between layers are always there.
  int64_t activation_bytes = INT64_MAX;
  // Which calls it is made for, each with those before it: score() needs no memory of gradients,
  // gradients() no masters and moments.
  enum class Use { score, gradients, update } use = Use::update;
};

// How many layers, the last ones, keep their activations of T rows in `bytes` bytes.
int kept_layers(const ModelConfig&, int64_t T, int slices, int64_t bytes);

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

  // The first half of update(): ends with the reduced gradient in the optimizer.
  UpdateResult gradients(std::vector<Sample>&, int first, int count,
                         const TokenGradient& token_gradient = nullptr);

  Optimizer& optimizer() { return *optimizer_; }

 private:
  struct Pass;

  void upload(Pass&, const std::vector<Sample>&, const SuperBatch&, bool reference);
  void forward(Pass&, const WeightsView&, bool keep);
  void logits(Pass&, const WeightsView&, int64_t begin, int64_t end);
  void share_logp(const Pass&, const std::vector<float>& mine, std::vector<Sample>&,
                  std::vector<float> Sample::*which);
  // g of a head row from its log-prob, as backward_head takes it.
  using RowGradient = std::function<float(int64_t row, float logp)>;
  std::vector<float> head(Pass&, const WeightsView&, const RowGradient&);
  void backward(Pass&, const WeightsView&);
  void backward_scratch(Pass&);
  void backward_embedding(Pass&);
  // Where the backward pass writes the gradient of a layer, and of a storage outside the layers.
  float* layer_grads(const Pass&, int layer) const;
  float* outer_grads(const Pass&, Storage) const;
  void reduce(const Pass&, Storage, int layer);
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
  DeviceBuffer acts_, scratch_, pages_, gathered_, backward_, head_, head_grads_, logp_;
  Upload upload_;
};

}  // namespace rlk
