#pragma once
// The Qwen3 forward pass, written once: rollout (decode, prefill) and training (scoring, recompute)
// make the same flat list of op calls on every backend. What differs is data: which tokens, which
// pages, how many buffers are kept.
//
// Ownership: everything is borrowed. Threads: one per rank.

#include <cstdint>
#include <functional>
#include <vector>

#include "rlk/comm/communicator.h"
#include "rlk/comm/native_sum.h"
#include "rlk/device/ops.h"
#include "rlk/model/trace.h"
#include "rlk/model/weights.h"
#include "rlk/profile/model_config.h"

namespace rlk {

// What an engine computes with. The op tables differ only in native mode, per module (--modules).
struct Context {
  const Ops* attention;  // QKV and output projections, norms, attention
  const Ops* ffn;
  const Ops* logp;  // head, log-probs, sampling
  Stream stream;
  Communicator* tp;  // of the engine: its virtual slices add up to 8
  ModelConfig config;
  const float* rope;  // [max_position, Dh/2, 2] cos, sin
  Trace* trace;       // null unless --trace-ops
  // Native modules of several GPUs: their sums over tp. Null: the ordered tree.
  NativeSum *attention_sum = nullptr, *ffn_sum = nullptr, *logp_sum = nullptr;
  // No kernel on the stream writes weights: true of rollout, whose weights change between its
  // passes (GemmArgs::w_ready).
  bool weights_ready = false;
};

// The same rows in another order, for attention alone: by sequence and position, where leaves cut
// the sequences into pieces shorter than an attention block. No bit depends on it. Device memory.
struct AttentionRows {
  int64_t n;            // rows, without padding
  const int32_t* from;  // [n] row of the batch
  const int32_t* to;    // [T] its row here, -1 for padding
  bf16 *q, *o;          // [n, H, Dh]; the backward pass lays its dq, and dk and dv, over them
  float* lse;           // [n, H]
};

// Rows of a forward pass. Device-accessible arrays.
struct Batch {
  int64_t T = 0;
  const int32_t* ids = nullptr;       // [T]
  const int32_t* position = nullptr;  // [T]
  const int32_t* seq =
      nullptr;  // [T] row of the page table; negative: padding, belongs to no sequence
  const AttentionSegment* segments = nullptr;  // of attention_rows, where they are given
  int32_t n_segments = 0, max_len = 0, max_context = 0;
  bool past_ready = false;  // AttentionArgs::past_ready
  const AttentionRows* attention_rows = nullptr;
};

// Buffers of one layer over T rows, this rank's slices. The rollout engine keeps one and lets every
// layer write it; training keeps one per layer, or one that recompute fills again.
struct LayerActs {
  bf16* x;    // [T, D] residual stream entering the layer
  bf16* y1;   // [T, D] after the input norm
  bf16* qkv;  // [T, n*(hq+2*hkv)*Dh]
  bf16* q;    // [T, n*hq, Dh]
  bf16* k;    // [T, n*hkv, Dh] (training only)
  bf16* v;
  bf16* o;               // [T, n*hq, Dh] attention output
  bf16* x_mid;           // [T, D] residual stream after attention
  bf16* y2;              // [T, D] after the second norm
  bf16* gate_up;         // [T, n*2*F/8]
  bf16* act;             // [T, n*F/8]
  float *rstd1, *rstd2;  // [T]
  float* lse;            // [T, n*hq] (training only)
};

struct ForwardScratch {
  float* partial;  // [T, D] f32, unused where the group has one rank
  bf16* delta;     // [T, D] what the residual stream receives next
  void* attention_workspace;
};

// Bytes of LayerActs for T rows and n slices, and the struct laid out at `base` (null: only the
// size).
int64_t layer_acts_bytes(const ModelConfig&, int64_t T, int slices, bool training);
LayerActs layer_acts_at(void* base, const ModelConfig&, int64_t T, int slices, bool training);

// Writes the layer's K/V where attention will look for them. Rollout: null, the rope op writes the
// pages itself. Training: gathers k and v over the CP group and writes this rank's pages.
using KvPublish = std::function<void(const LayerActs&)>;

// x of layer 0 = embedding rows.
void embed(const Context&, const WeightsView&, const Batch&, bf16* x);

// One layer. `previous`: x_mid of the layer before (null for layer 0, whose a.x holds the
// embedding); scratch.delta: its down projection. Leaves x_mid in `a` and this layer's down
// projection in scratch.delta. down: false where nothing follows, since the backward pass alone
// wants `a` again.
void forward_layer(const Context&, const WeightsView&, int layer, const Batch&, const KvCache&,
                   const KvPublish&, const bf16* previous, LayerActs& a, ForwardScratch&,
                   bool down = true);

// scratch.delta = round(partial sums over the engine's ranks): a row-parallel projection of T rows
// of D. `native` may be null.
void row_parallel(const Context&, const Ops&, NativeSum* native, const bf16* x, const bf16* w,
                  int64_t T, int64_t ks, int slices, ForwardScratch&);

// rope table, computed on the host in fp64 and rounded once.
std::vector<float> rope_table(const ModelConfig&, int64_t positions);

}  // namespace rlk
