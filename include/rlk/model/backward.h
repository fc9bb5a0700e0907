#pragma once
// Gradients of the forward pass, layer by layer over a whole super-batch (R7). Weight gradients are
// this rank's CP subtree in fp32; the trainer finishes the tree across the CP group. The residual
// stream's gradient is fp32.

#include <cstdint>

#include "rlk/model/exchange.h"
#include "rlk/model/forward.h"
#include "rlk/model/head.h"

namespace rlk {

// fp32 weight gradients, laid out as ArenaLayout lays out the weights of this rank's training
// slices.
struct GradView {
  float* base;  // of one layer, or of the tensors outside the layers
  const ArenaLayout* layout;
  float* layer(Storage s) const {  // inside a layer's block
    return base + (layout->offset(s, 0) - layout->layer_begin(0));
  }
};

struct BackwardScratch {
  float* dres;   // [T, D] gradient of the residual stream
  float* dy;     // [T, D] gradient of a norm's output
  bf16* dres16;  // [T, D]
  bf16* dact;    // [T, n*F/8]
  bf16* dqkv;    // [T, n*qkv]
  bf16* dq;      // [T, n*hq, Dh]
  bf16* dk;      // [T, n*hkv, Dh]
  bf16* dv;
  CpExchange::Pair pair;  // d_o and delta
  SequenceActs sequence;
  float* qk_dw;     // [2][leaves, n, Dh], then the gathered [tp][...] and joined copies
  void* workspace;  // largest of the ops'
};
int64_t backward_scratch_bytes(const Context&, int64_t T, int64_t S, int slices, int leaves,
                               const AttentionBwdArgs& bounds);
BackwardScratch backward_scratch_at(void* base, const Context&, int64_t T, int64_t S, int slices,
                                    int leaves, const AttentionBwdArgs& bounds);

// Head, R rows whose logits `a` holds: from g [R] = dLoss/dNLL (NLL = -logp) to the gradient of the
// final residual stream, scattered to rows index[R] of scratch.dres; the head's weight gradient
// into dw_head and the final norm's into dw_norm, over `leaves` of these rows.
void backward_head(const Context&, const WeightsView&, const int32_t* index, const int32_t* target,
                   const float* g, int64_t R, const Leaves& leaves, const RowSampling&, HeadActs&,
                   BackwardScratch&, float* dw_head, float* dw_norm);

// One layer: scratch.dres in and out; weight gradients overwritten in `grads`.
void backward_layer(const Context&, const WeightsView&, int layer, const Batch&, const CpExchange&,
                    const Leaves&, const LayerActs&, BackwardScratch&, const GradView& grads);

}  // namespace rlk
