#include "rlk/model/forward.h"

#include <cmath>

#include "rlk/base/carve.h"
#include "rlk/base/math.h"

namespace rlk {
namespace {

// Names the output of the op just called. A layer's outputs are traced under the same name in both
// engines.
void trace(const Context& ctx, const char* op, int layer, const void* data, int64_t slice_bytes,
           Topology::Range range) {
  if (!ctx.trace) return;
  ctx.ffn->synchronize(ctx.stream);
  ctx.trace->record(op, layer, data, slice_bytes, range.first, range.count);
}

constexpr Topology::Range kReplicated{-1, 1};

LayerActs carve_acts(Carve& c, const ModelConfig& m, int64_t T, int n, bool training) {
  LayerActs a{};
  a.x = c.take<bf16>(T * m.D);
  a.y1 = c.take<bf16>(T * m.D);
  a.qkv = c.take<bf16>(T * n * m.qkv_slice());
  // q, k, v and lse lie together: the backward pass gathers them in one collective.
  a.q = c.take<bf16>(T * n * m.attn_slice());
  if (training) {
    a.k = c.take<bf16>(T * n * m.hkv() * m.Dh);
    a.v = c.take<bf16>(T * n * m.hkv() * m.Dh);
    a.lse = c.take<float>(T * n * m.hq());
  }
  a.o = c.take<bf16>(T * n * m.attn_slice());
  a.x_mid = c.take<bf16>(T * m.D);
  a.y2 = c.take<bf16>(T * m.D);
  a.gate_up = c.take<bf16>(T * n * 2 * m.ffn_slice());
  a.act = c.take<bf16>(T * n * m.ffn_slice());
  a.rstd1 = c.take<float>(T);
  a.rstd2 = c.take<float>(T);
  return a;
}

// Column-parallel projection: whole rows in, this rank's output slices out.
GemmArgs column_parallel(const Context& ctx, const bf16* x, const bf16* w, bf16* y, int64_t T,
                         int64_t N, int64_t K) {
  return {.x = x,
          .w = w,
          .y = y,
          .T = T,
          .N = N,
          .ks = K / kSlices,
          .slices = kSlices,
          .ldx = K,
          .w_slice = K / kSlices,
          .ldw = K,
          .ldy = N,
          .out_f32 = false,
          .w_ready = ctx.weights_ready};
}

// a.o and a.lse from a.q, in the batch's order of rows or by way of another.
void attend(const Context& ctx, const Batch& b, const KvCache& cache, int n, LayerActs& a,
            ForwardScratch& scratch) {
  const ModelConfig& m = ctx.config;
  const Ops& ops = *ctx.attention;
  const AttentionRows* rows = b.attention_rows;
  const int64_t T = rows ? rows->n : b.T, q_bytes = n * m.attn_slice() * 2,
                stat_bytes = n * m.hq() * 4;
  auto move = [&](const void* x, void* y, const int32_t* index, int64_t count, int64_t bytes) {
    ops.gather_rows(ctx.stream,
                    {.x = x, .y = y, .index = index, .rows = count, .row_bytes = bytes});
  };
  if (rows) move(a.q, rows->q, rows->from, T, q_bytes);
  ops.attention(ctx.stream, {.q = rows ? rows->q : a.q,
                             .cache = cache,
                             .segments = b.segments,
                             .n_segments = b.n_segments,
                             .max_len = b.max_len,
                             .max_context = b.max_context,
                             .o = rows ? rows->o : a.o,
                             .lse = rows ? rows->lse : a.lse,
                             .T = T,
                             .H = n * static_cast<int>(m.hq()),
                             .KH = n * static_cast<int>(m.hkv()),
                             .Dh = static_cast<int>(m.Dh),
                             .scale = 1.0f / std::sqrt(static_cast<float>(m.Dh)),
                             .workspace = scratch.attention_workspace,
                             .past_ready = b.past_ready});
  if (!rows) return;
  move(rows->o, a.o, rows->to, b.T, q_bytes);  // padding becomes zero rows
  move(rows->lse, a.lse, rows->to, b.T, stat_bytes);
}

}  // namespace

int64_t layer_acts_bytes(const ModelConfig& m, int64_t T, int slices, bool training) {
  Carve carve(nullptr);
  carve_acts(carve, m, T, slices, training);
  return carve.bytes();
}

LayerActs layer_acts_at(void* base, const ModelConfig& m, int64_t T, int slices, bool training) {
  Carve carve(base);
  return carve_acts(carve, m, T, slices, training);
}

std::vector<float> rope_table(const ModelConfig& m, int64_t positions) {
  const int64_t half = m.Dh / 2;
  const double log_base = strict_log(m.rope_theta);
  std::vector<float> table(positions * half * 2);
  for (int64_t i = 0; i < half; ++i) {
    // Hugging Face keeps the inverse frequency in fp32 and so do the checkpoints' training runs.
    const float inverse = static_cast<float>(
        strict_exp(-log_base * static_cast<double>(2 * i) / static_cast<double>(m.Dh)));
    for (int64_t p = 0; p < positions; ++p) {
      double sine, cosine;
      strict_sincos(static_cast<double>(p) * inverse, &sine, &cosine);
      table[(p * half + i) * 2] = static_cast<float>(cosine);
      table[(p * half + i) * 2 + 1] = static_cast<float>(sine);
    }
  }
  return table;
}

void embed(const Context& ctx, const WeightsView& w, const Batch& b, bf16* x) {
  EmbeddingArgs args{.slice = {},
                     .slice_rows = ctx.config.vocab_slice(),
                     .ids = b.ids,
                     .y = x,
                     .T = b.T,
                     .D = ctx.config.D};
  for (int s = 0; s < kSlices; ++s) args.slice[s] = w.embed[s];
  ctx.ffn->embedding(ctx.stream, args);
  trace(ctx, "embedding", -1, x, ctx.config.D * 2, kReplicated);
}

void row_parallel(const Context& ctx, const Ops& ops, NativeSum* native, const bf16* x,
                  const bf16* w, int64_t T, int64_t ks, int slices, ForwardScratch& scratch) {
  const int64_t N = ctx.config.D;
  const bool alone = ctx.tp->size() == 1, whole = alone || native;
  void* y = whole ? static_cast<void*>(scratch.delta) : scratch.partial;
  ops.gemm(ctx.stream, {.x = x,
                        .w = w,
                        .y = y,
                        .T = T,
                        .N = N,
                        .ks = ks,
                        .slices = slices,
                        .ldx = slices * ks,
                        .w_slice = N * ks,
                        .ldw = ks,
                        .ldy = N,
                        .out_f32 = !whole,
                        .w_ready = ctx.weights_ready});
  if (!whole)
    ctx.tp->tree_reduce(ctx.stream, scratch.partial, scratch.delta, T * N, false);
  else if (!alone)
    native->add(ctx.stream, scratch.delta, T * N);
}

void forward_layer(const Context& ctx, const WeightsView& view, int layer, const Batch& b,
                   const KvCache& cache, const KvPublish& publish, const bf16* previous,
                   LayerActs& a, ForwardScratch& scratch, bool down) {
  const ModelConfig& m = ctx.config;
  const LayerWeights& w = view.layer[layer];
  const Topology::Range range = view.range;
  const int n = range.count;
  const Ops &attn = *ctx.attention, &ffn = *ctx.ffn;
  const Stream s = ctx.stream;
  const int hq = static_cast<int>(m.hq()), hkv = static_cast<int>(m.hkv()),
            Dh = static_cast<int>(m.Dh);

  attn.rms_norm(s, {.x = previous ? previous : a.x,
                    .delta = previous ? scratch.delta : nullptr,
                    .x_out = previous ? a.x : nullptr,
                    .w = w.input_norm,
                    .y = a.y1,
                    .rstd = a.rstd1,
                    .T = b.T,
                    .D = m.D,
                    .eps = m.rms_eps,
                    .w_ready = ctx.weights_ready});
  trace(ctx, "residual", layer, a.x, m.D * 2, kReplicated);
  trace(ctx, "input_norm", layer, a.y1, m.D * 2, kReplicated);

  attn.gemm(s, column_parallel(ctx, a.y1, w.qkv, a.qkv, b.T, n * m.qkv_slice(), m.D));
  trace(ctx, "qkv", layer, a.qkv, m.qkv_slice() * 2, range);

  attn.qk_norm_rope(s, {.qkv = a.qkv,
                        .q_weight = w.q_norm,
                        .k_weight = w.k_norm,
                        .position = b.position,
                        .rope = ctx.rope,
                        .q = a.q,
                        .k = publish ? a.k : nullptr,
                        .v = publish ? a.v : nullptr,
                        .cache = publish ? nullptr : &cache,
                        .seq = publish ? nullptr : b.seq,
                        .T = b.T,
                        .slices = n,
                        .hq = hq,
                        .hkv = hkv,
                        .Dh = Dh,
                        .eps = m.rms_eps,
                        .ready = b.past_ready && ctx.weights_ready});
  trace(ctx, "rope", layer, a.q, m.attn_slice() * 2, range);
  if (publish) publish(a);

  attend(ctx, b, cache, n, a, scratch);
  trace(ctx, "attention", layer, a.o, m.attn_slice() * 2, range);

  row_parallel(ctx, attn, ctx.attention_sum, a.o, w.o, b.T, m.attn_slice(), n, scratch);
  trace(ctx, "o_proj", layer, scratch.delta, m.D * 2, kReplicated);

  attn.rms_norm(s, {.x = a.x,
                    .delta = scratch.delta,
                    .x_out = a.x_mid,
                    .w = w.post_norm,
                    .y = a.y2,
                    .rstd = a.rstd2,
                    .T = b.T,
                    .D = m.D,
                    .eps = m.rms_eps,
                    .w_ready = ctx.weights_ready});
  trace(ctx, "post_norm", layer, a.y2, m.D * 2, kReplicated);

  const GemmArgs gate_up =
      column_parallel(ctx, a.y2, w.gate_up, a.gate_up, b.T, n * 2 * m.ffn_slice(), m.D);
  if (publish || ctx.trace) {  // the backward pass or the trace reads gate_up
    ffn.gemm(s, gate_up);
    trace(ctx, "gate_up", layer, a.gate_up, 2 * m.ffn_slice() * 2, range);
    ffn.swiglu(s, {.gate_up = a.gate_up, .act = a.act, .T = b.T, .fs = m.ffn_slice(), .slices = n});
  } else {
    ffn.gemm_swiglu(s, {.gemm = gate_up, .act = a.act, .fs = m.ffn_slice(), .slices = n});
  }
  trace(ctx, "swiglu", layer, a.act, m.ffn_slice() * 2, range);
  if (!down) return;
  row_parallel(ctx, ffn, ctx.ffn_sum, a.act, w.down, b.T, m.ffn_slice(), n, scratch);
  trace(ctx, "down", layer, scratch.delta, m.D * 2, kReplicated);
}

}  // namespace rlk
