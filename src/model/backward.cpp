#include "rlk/model/backward.h"

#include <algorithm>
#include <cmath>

#include "rlk/base/carve.h"

namespace rlk {
namespace {

void trace(const Context& ctx, const char* op, int layer, const void* data, int64_t slice_bytes,
           Topology::Range range) {
  if (!ctx.trace) return;
  ctx.ffn->synchronize(ctx.stream);
  ctx.trace->record(op, layer, data, slice_bytes, range.first, range.count);
}

constexpr Topology::Range kReplicated{-1, 1};

BackwardScratch carve_scratch(Carve& c, const Context& ctx, int64_t T, int64_t S, int n, int leaves,
                              const AttentionBwdArgs& bounds) {
  const ModelConfig& m = ctx.config;
  BackwardScratch b{};
  b.dres = c.take<float>(T * m.D);
  b.dy = c.take<float>(T * m.D);
  b.dres16 = c.take<bf16>(T * m.D);
  b.dact = c.take<bf16>(T * n * m.ffn_slice());
  b.dqkv = c.take<bf16>(T * n * m.qkv_slice());
  b.dq = c.take<bf16>(T * n * m.attn_slice());
  b.dk = c.take<bf16>(T * n * m.hkv() * m.Dh);
  b.dv = c.take<bf16>(T * n * m.hkv() * m.Dh);
  b.pair = CpExchange::pair_at(c.take<char>(CpExchange::pair_bytes(m, T, n)), m, T, n);
  b.sequence = sequence_acts_at(c.take<char>(sequence_acts_bytes(m, S, n)), m, S, n);
  const int64_t one = 2 * leaves * n * m.Dh;
  b.qk_dw = c.take<float>(one + one * ctx.tp->size() + 2 * leaves * m.Dh);

  Leaves all{.count = leaves, .begin = {}};
  for (int l = 1; l <= leaves; ++l) all.begin[l] = l * (T / leaves / 64 * 64);
  all.begin[leaves] = T;
  const RmsNormWgradArgs norm{.dy = nullptr,
                              .x = nullptr,
                              .rstd = nullptr,
                              .dw = nullptr,
                              .D = m.D,
                              .leaves = all,
                              .workspace = nullptr};
  const QkNormRopeBwdArgs rope{.qkv = nullptr,
                               .q_weight = nullptr,
                               .k_weight = nullptr,
                               .position = nullptr,
                               .rope = nullptr,
                               .dq = nullptr,
                               .dk = nullptr,
                               .dv = nullptr,
                               .dqkv = nullptr,
                               .q_dw = nullptr,
                               .k_dw = nullptr,
                               .T = T,
                               .slices = n,
                               .hq = static_cast<int>(m.hq()),
                               .hkv = static_cast<int>(m.hkv()),
                               .Dh = static_cast<int>(m.Dh),
                               .eps = m.rms_eps,
                               .leaves = all,
                               .workspace = nullptr};
  const size_t workspace = std::max({ctx.ffn->rms_norm_wgrad_workspace(norm),
                                     ctx.attention->qk_norm_rope_bwd_workspace(rope),
                                     ctx.attention->attention_bwd_workspace(bounds)});
  b.workspace = c.take<char>(static_cast<int64_t>(workspace));
  return b;
}

// d_x [T, n*ks] of a row-parallel projection from the residual gradient.
void dgrad_row_parallel(const Context& ctx, const Ops& ops, const bf16* dy, const bf16* w, bf16* dx,
                        int64_t T, int64_t ks, int n) {
  const int64_t N = ctx.config.D;
  ops.gemm_dgrad(ctx.stream, {.dy = dy,
                              .w = w,
                              .dx = dx,
                              .T = T,
                              .ns = N / kSlices,
                              .gk = ks,
                              .slices = kSlices,
                              .groups = n,
                              .lddy = N,
                              .w_slice = N / kSlices * ks,
                              .w_group = N * ks,
                              .ldw = ks,
                              .lddx = n * ks,
                              .out_f32 = false});
}

// d_x [T, D] f32 of a column-parallel projection, summed over the engine's ranks.
void dgrad_column_parallel(const Context& ctx, const Ops& ops, NativeSum* native, const bf16* dy,
                           const bf16* w, float* dx, int64_t T, int64_t ns, int n) {
  const int64_t D = ctx.config.D;
  ops.gemm_dgrad(ctx.stream, {.dy = dy,
                              .w = w,
                              .dx = dx,
                              .T = T,
                              .ns = ns,
                              .gk = D,
                              .slices = n,
                              .groups = 1,
                              .lddy = n * ns,
                              .w_slice = ns * D,
                              .w_group = 0,
                              .ldw = D,
                              .lddx = D,
                              .out_f32 = true});
  if (ctx.tp->size() == 1) return;
  native ? native->add(ctx.stream, dx, T * D)
         : ctx.tp->tree_reduce(ctx.stream, dx, dx, T * D, true);
}

void wgrad_row_parallel(const Context& ctx, const Ops& ops, const bf16* dy, const bf16* x,
                        float* dw, int64_t ks, int n, const Leaves& leaves) {
  const int64_t N = ctx.config.D;
  ops.gemm_wgrad(ctx.stream, {.dy = dy,
                              .x = x,
                              .dw = dw,
                              .N = N,
                              .gk = ks,
                              .groups = n,
                              .leaves = leaves,
                              .lddy = N,
                              .ldx = n * ks,
                              .dw_group = N * ks,
                              .lddw = ks});
}

void wgrad_column_parallel(const Context& ctx, const Ops& ops, const bf16* dy, const bf16* x,
                           float* dw, int64_t N, const Leaves& leaves) {
  const int64_t D = ctx.config.D;
  ops.gemm_wgrad(ctx.stream, {.dy = dy,
                              .x = x,
                              .dw = dw,
                              .N = N,
                              .gk = D,
                              .groups = 1,
                              .leaves = leaves,
                              .lddy = N,
                              .ldx = D,
                              .dw_group = 0,
                              .lddw = D});
}

void norm_backward(const Context& ctx, const bf16* x, const bf16* w, const float* rstd, int64_t T,
                   const Leaves& leaves, BackwardScratch& b, float* dw) {
  const int64_t D = ctx.config.D;
  ctx.attention->rms_norm_wgrad(ctx.stream, {.dy = b.dy,
                                             .x = x,
                                             .rstd = rstd,
                                             .dw = dw,
                                             .D = D,
                                             .leaves = leaves,
                                             .workspace = b.workspace});
  ctx.attention->rms_norm_bwd(ctx.stream, {.dy = b.dy,
                                           .x = x,
                                           .w = w,
                                           .rstd = rstd,
                                           .dres = b.dres,
                                           .T = T,
                                           .D = D,
                                           .accumulate = true});
}

// q_norm and k_norm are cut both ways: the TP tree inside each CP leaf, then this rank's part of
// the CP tree.
void join_qk_weights(const Context& ctx, int n, const Leaves& leaves, BackwardScratch& b,
                     float* q_dw, float* k_dw) {
  const int64_t Dh = ctx.config.Dh, one = 2 * leaves.count * n * Dh;
  const int tp = ctx.tp->size();
  const float* all = b.qk_dw;
  if (tp > 1) {
    ctx.tp->all_gather(ctx.stream, b.qk_dw, b.qk_dw + one,
                       static_cast<size_t>(one) * sizeof(float));
    all = b.qk_dw + one;
  }
  float* joined = b.qk_dw + one + one * tp;
  float* const out[2] = {q_dw, k_dw};
  for (int which = 0; which < 2; ++which) {
    TreeAddArgs leaf_tree{.part = {},
                          .count = leaves.count,
                          .out = out[which],
                          .n = Dh,
                          .out_f32 = true,
                          .accumulate = false};
    for (int c = 0; c < leaves.count; ++c) {
      float* leaf = joined + (which * leaves.count + c) * Dh;
      TreeAddArgs slice_tree{
          .part = {}, .count = kSlices, .out = leaf, .n = Dh, .out_f32 = true, .accumulate = false};
      for (int s = 0; s < kSlices; ++s)
        slice_tree.part[s] = all + (s / n) * one + ((which * leaves.count + c) * n + s % n) * Dh;
      ctx.attention->tree_add(ctx.stream, slice_tree);
      leaf_tree.part[c] = leaf;
    }
    ctx.attention->tree_add(ctx.stream, leaf_tree);
  }
}

void backward_ffn(const Context& ctx, const WeightsView& view, int layer, int64_t T,
                  const Leaves& leaves, const LayerActs& a, BackwardScratch& b,
                  const GradView& grads) {
  const ModelConfig& m = ctx.config;
  const LayerWeights& w = view.layer[layer];
  const int n = view.range.count;
  const Ops& ops = *ctx.ffn;
  ops.cast(ctx.stream, {.x = b.dres, .y = b.dres16, .n = T * m.D});
  dgrad_row_parallel(ctx, ops, b.dres16, w.down, b.dact, T, m.ffn_slice(), n);
  trace(ctx, "d_act", layer, b.dact, m.ffn_slice() * 2, view.range);
  wgrad_row_parallel(ctx, ops, b.dres16, a.act, grads.layer(Storage::down), m.ffn_slice(), n,
                     leaves);
  ops.swiglu_bwd(ctx.stream, {.gate_up = a.gate_up,
                              .dact = b.dact,
                              .d_gate_up = a.gate_up,
                              .T = T,
                              .fs = m.ffn_slice(),
                              .slices = n});
  trace(ctx, "d_gate_up", layer, a.gate_up, 2 * m.ffn_slice() * 2, view.range);
  dgrad_column_parallel(ctx, ops, ctx.ffn_sum, a.gate_up, w.gate_up, b.dy, T, 2 * m.ffn_slice(), n);
  trace(ctx, "d_post_norm", layer, b.dy, m.D * 4, kReplicated);
  wgrad_column_parallel(ctx, ops, a.gate_up, a.y2, grads.layer(Storage::gate_up),
                        n * 2 * m.ffn_slice(), leaves);
  norm_backward(ctx, a.x_mid, w.post_norm, a.rstd2, T, leaves, b, grads.layer(Storage::post_norm));
}

void backward_attention_op(const Context& ctx, const Batch& batch, const CpExchange& exchange,
                           int n, const LayerActs& a, BackwardScratch& b) {
  const ModelConfig& m = ctx.config;
  const int H = n * static_cast<int>(m.hq()), KH = n * static_cast<int>(m.hkv());
  const int Dh = static_cast<int>(m.Dh);
  const Ops& ops = *ctx.attention;
  ops.attention_delta(
      ctx.stream,
      {.o = a.o, .d_o = b.pair.d_o, .delta = b.pair.delta, .T = batch.T, .H = H, .Dh = Dh});
  exchange.collect(a, b.pair.d_o, b.pair.delta, b.sequence);
  const AttentionRows* rows = batch.attention_rows;
  const int64_t q_bytes = int64_t{H} * Dh * 2, kv_bytes = int64_t{KH} * Dh * 2;
  // Padding rows belong to no segment, so nothing writes them.
  if (!rows) {
    ops.zero(ctx.stream, b.dq, static_cast<size_t>(batch.T * q_bytes));
    ops.zero(ctx.stream, b.dk, static_cast<size_t>(batch.T * kv_bytes));
    ops.zero(ctx.stream, b.dv, static_cast<size_t>(batch.T * kv_bytes));
  }
  bf16* const dq = rows ? rows->q : b.dq;
  bf16* const dk = rows ? rows->o : b.dk;
  bf16* const dv = rows ? rows->o + rows->n * KH * Dh : b.dv;
  const AttentionBwdArgs args{.q = b.sequence.q,
                              .k = b.sequence.k,
                              .v = b.sequence.v,
                              .d_o = b.sequence.d_o,
                              .lse = b.sequence.lse,
                              .delta = b.sequence.delta,
                              .seq_begin = exchange.map().seq_begin,
                              .segments = batch.segments,
                              .n_segments = batch.n_segments,
                              .max_len = batch.max_len,
                              .max_context = batch.max_context,
                              .dq = dq,
                              .dk = dk,
                              .dv = dv,
                              .S = exchange.map().S,
                              .H = H,
                              .KH = KH,
                              .Dh = Dh,
                              .scale = 1.0f / std::sqrt(static_cast<float>(Dh)),
                              .workspace = b.workspace};
  ops.attention_bwd_dq(ctx.stream, args);
  ops.attention_bwd_dkv(ctx.stream, args);
  if (!rows) return;
  auto back = [&](const bf16* x, bf16* y, int64_t bytes) {
    ops.gather_rows(ctx.stream,
                    {.x = x, .y = y, .index = rows->to, .rows = batch.T, .row_bytes = bytes});
  };
  back(dq, b.dq, q_bytes);
  back(dk, b.dk, kv_bytes);
  back(dv, b.dv, kv_bytes);
}

}  // namespace

int64_t backward_scratch_bytes(const Context& ctx, int64_t T, int64_t S, int slices, int leaves,
                               const AttentionBwdArgs& bounds) {
  Carve carve(nullptr);
  carve_scratch(carve, ctx, T, S, slices, leaves, bounds);
  return carve.bytes();
}

BackwardScratch backward_scratch_at(void* base, const Context& ctx, int64_t T, int64_t S,
                                    int slices, int leaves, const AttentionBwdArgs& bounds) {
  Carve carve(base);
  return carve_scratch(carve, ctx, T, S, slices, leaves, bounds);
}

void backward_head(const Context& ctx, const WeightsView& view, const int32_t* index,
                   const int32_t* target, const float* g, int64_t R, const Leaves& leaves,
                   const RowSampling& sampling, HeadActs& a, BackwardScratch& b, float* dw_head,
                   float* dw_norm) {
  const ModelConfig& m = ctx.config;
  const Ops& ops = *ctx.logp;
  const int n = view.range.count;
  const int64_t vs = m.vocab_slice();
  ops.logprob_bwd(ctx.stream, {.logits = {.x = a.logits,
                                          .T = R,
                                          .ld = n * vs,
                                          .slice_rows = vs,
                                          .first_slice = view.range.first,
                                          .slices = n,
                                          .vocab = m.vocab},
                               .inv_temp = sampling.logp_inv_temp,
                               .threshold = sampling.limited ? a.threshold : nullptr,
                               .target = target,
                               .lse = a.lse,
                               .g = g,
                               .dlogits = a.logits});
  trace(ctx, "d_logits", -1, a.logits, vs * 2, view.range);
  // b.dy holds R <= T rows here: the compact gradient of the head's input.
  dgrad_column_parallel(ctx, ops, ctx.logp_sum, a.logits, view.head, b.dy, R, vs, n);
  trace(ctx, "d_final_norm", -1, b.dy, m.D * 4, kReplicated);
  wgrad_column_parallel(ctx, ops, a.logits, a.y, dw_head, n * vs, leaves);
  ops.rms_norm_wgrad(ctx.stream, {.dy = b.dy,
                                  .x = a.x,
                                  .rstd = a.rstd,
                                  .dw = dw_norm,
                                  .D = m.D,
                                  .leaves = leaves,
                                  .workspace = b.workspace});
  ops.rms_norm_bwd(ctx.stream, {.dy = b.dy,
                                .x = a.x,
                                .w = view.final_norm,
                                .rstd = a.rstd,
                                .dres = b.dy,
                                .T = R,
                                .D = m.D,
                                .accumulate = false});
  ops.scatter_rows(ctx.stream,
                   {.x = b.dy, .y = b.dres, .index = index, .rows = R, .row_bytes = m.D * 4});
}

void backward_layer(const Context& ctx, const WeightsView& view, int layer, const Batch& batch,
                    const CpExchange& exchange, const Leaves& leaves, const LayerActs& a,
                    BackwardScratch& b, const GradView& grads) {
  const ModelConfig& m = ctx.config;
  const LayerWeights& w = view.layer[layer];
  const Ops& ops = *ctx.attention;
  const int n = view.range.count;
  const int64_t T = batch.T;
  trace(ctx, "d_residual", layer, b.dres, m.D * 4, kReplicated);
  backward_ffn(ctx, view, layer, T, leaves, a, b, grads);

  ops.cast(ctx.stream, {.x = b.dres, .y = b.dres16, .n = T * m.D});
  dgrad_row_parallel(ctx, ops, b.dres16, w.o, b.pair.d_o, T, m.attn_slice(), n);
  trace(ctx, "d_attention", layer, b.pair.d_o, m.attn_slice() * 2, view.range);
  wgrad_row_parallel(ctx, ops, b.dres16, a.o, grads.layer(Storage::o), m.attn_slice(), n, leaves);
  backward_attention_op(ctx, batch, exchange, n, a, b);
  trace(ctx, "d_q", layer, b.dq, m.attn_slice() * 2, view.range);
  trace(ctx, "d_k", layer, b.dk, m.hkv() * m.Dh * 2, view.range);
  trace(ctx, "d_v", layer, b.dv, m.hkv() * m.Dh * 2, view.range);

  ops.qk_norm_rope_bwd(ctx.stream, {.qkv = a.qkv,
                                    .q_weight = w.q_norm,
                                    .k_weight = w.k_norm,
                                    .position = batch.position,
                                    .rope = ctx.rope,
                                    .dq = b.dq,
                                    .dk = b.dk,
                                    .dv = b.dv,
                                    .dqkv = b.dqkv,
                                    .q_dw = b.qk_dw,
                                    .k_dw = b.qk_dw + leaves.count * n * m.Dh,
                                    .T = T,
                                    .slices = n,
                                    .hq = static_cast<int>(m.hq()),
                                    .hkv = static_cast<int>(m.hkv()),
                                    .Dh = static_cast<int>(m.Dh),
                                    .eps = m.rms_eps,
                                    .leaves = leaves,
                                    .workspace = b.workspace});
  trace(ctx, "d_qkv", layer, b.dqkv, m.qkv_slice() * 2, view.range);
  join_qk_weights(ctx, n, leaves, b, grads.layer(Storage::q_norm), grads.layer(Storage::k_norm));
  dgrad_column_parallel(ctx, ops, ctx.attention_sum, b.dqkv, w.qkv, b.dy, T, m.qkv_slice(), n);
  trace(ctx, "d_input_norm", layer, b.dy, m.D * 4, kReplicated);
  wgrad_column_parallel(ctx, ops, b.dqkv, a.y1, grads.layer(Storage::qkv), n * m.qkv_slice(),
                        leaves);
  norm_backward(ctx, a.x, w.input_norm, a.rstd1, T, leaves, b, grads.layer(Storage::input_norm));
}

}  // namespace rlk
