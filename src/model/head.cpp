#include "rlk/model/head.h"

#include <algorithm>
#include <vector>

#include "rlk/base/carve.h"
#include "rlk/base/error.h"

namespace rlk {
namespace {

LogitsView local_view(const Context& ctx, const WeightsView& w, const HeadActs& a, int64_t R) {
  const int64_t vs = ctx.config.vocab_slice();
  return {.x = a.logits,
          .T = R,
          .ld = w.range.count * vs,
          .slice_rows = vs,
          .first_slice = w.range.first,
          .slices = w.range.count,
          .vocab = ctx.config.vocab};
}

LogitsView full_view(const Context& ctx, const bf16* full, int64_t R) {
  const int64_t vs = ctx.config.vocab_slice();
  return {.x = full,
          .T = R,
          .ld = kSlices * vs,
          .slice_rows = vs,
          .first_slice = 0,
          .slices = kSlices,
          .vocab = ctx.config.vocab};
}

HeadActs carve_head(Carve& c, const Context& ctx, int64_t R, int n, bool limited) {
  const ModelConfig& m = ctx.config;
  const int64_t columns = n * m.vocab_slice(), tp = ctx.tp->size();
  HeadActs a{};
  a.x_mid = c.take<bf16>(R * m.D);
  a.delta = c.take<bf16>(R * m.D);
  a.x = c.take<bf16>(R * m.D);
  a.y = c.take<bf16>(R * m.D);
  a.rstd = c.take<float>(R);
  a.logits = c.take<bf16>(R * columns);
  a.full = a.logits;
  if (limited && tp > 1) {
    a.parts = c.take<bf16>(tp * R * columns);
    a.full = c.take<bf16>(R * m.padded_vocab());
    a.full_row = c.take<int32_t>(tp * R);
  }
  a.threshold = c.take<uint32_t>(R);
  a.stats = c.take<SliceStats>(R * n);
  a.all_stats = c.take<SliceStats>(R * kSlices);
  a.best = c.take<Candidate>(R);
  a.all_best = c.take<Candidate>(R * tp);
  a.logp = c.take<float>(R);
  a.lse = c.take<float>(R);
  a.error = c.take<int32_t>(1);
  const SupportArgs support{.logits = full_view(ctx, nullptr, R),
                            .inv_temp = nullptr,
                            .top_p = nullptr,
                            .top_k = nullptr,
                            .threshold = nullptr,
                            .error = nullptr,
                            .workspace = nullptr};
  const SampleArgs sample{.logits = full_view(ctx, nullptr, R),
                          .inv_temp = nullptr,
                          .threshold = nullptr,
                          .keys = nullptr,
                          .best = nullptr,
                          .workspace = nullptr};
  const size_t workspace = std::max(limited ? ctx.logp->support_workspace(support) : 0,
                                    ctx.logp->sample_workspace(sample));
  a.workspace = c.take<char>(static_cast<int64_t>(workspace));
  return a;
}

void trace_rows(const Context& ctx, const char* op, const void* data, int64_t bytes, int first,
                int slices) {
  if (!ctx.trace) return;
  ctx.logp->synchronize(ctx.stream);
  ctx.trace->record(op, -1, data, bytes, first, slices);
}

}  // namespace

int64_t head_acts_bytes(const Context& ctx, int64_t R, int slices, bool limited) {
  Carve carve(nullptr);
  carve_head(carve, ctx, R, slices, limited);
  return carve.bytes();
}

HeadActs head_acts_at(void* base, const Context& ctx, int64_t R, int slices, bool limited) {
  Carve carve(base);
  HeadActs a = carve_head(carve, ctx, R, slices, limited);
  if (a.full_row) {
    const int tp = ctx.tp->size();
    std::vector<int32_t> row(tp * R);
    for (int r = 0; r < tp; ++r)
      for (int64_t j = 0; j < R; ++j) row[r * R + j] = static_cast<int32_t>(j * tp + r);
    ctx.logp->copy(ctx.stream, a.full_row, row.data(), row.size() * sizeof(int32_t));
    ctx.logp->synchronize(ctx.stream);
  }
  return a;
}

void head_logits(const Context& ctx, const WeightsView& w, const bf16* x_mid, const bf16* delta,
                 const int32_t* index, int64_t R, const RowSampling& sampling, HeadActs& a) {
  const ModelConfig& m = ctx.config;
  const Ops& ops = *ctx.logp;
  const Stream s = ctx.stream;
  const int64_t columns = w.range.count * m.vocab_slice();
  const auto gather = [&](const bf16*& x, bf16* y) {
    ops.gather_rows(s, {.x = x, .y = y, .index = index, .rows = R, .row_bytes = m.D * 2});
    x = y;
  };
  if (index) gather(x_mid, a.x_mid), gather(delta, a.delta);
  ops.rms_norm(s, {.x = x_mid,
                   .delta = delta,
                   .x_out = a.x,
                   .w = w.final_norm,
                   .y = a.y,
                   .rstd = a.rstd,
                   .T = R,
                   .D = m.D,
                   .eps = m.rms_eps,
                   .w_ready = ctx.weights_ready});
  trace_rows(ctx, "final_norm", a.y, m.D * 2, -1, 1);
  ops.gemm(s, {.x = a.y,
               .w = w.head,
               .y = a.logits,
               .T = R,
               .N = columns,
               .ks = m.D / kSlices,
               .slices = kSlices,
               .ldx = m.D,
               .w_slice = m.D / kSlices,
               .ldw = m.D,
               .ldy = columns,
               .out_f32 = false,
               .w_ready = ctx.weights_ready});
  trace_rows(ctx, "logits", a.logits, m.vocab_slice() * 2, w.range.first, w.range.count);
  if (!sampling.limited) return;
  if (ctx.tp->size() > 1) {
    ctx.tp->all_gather(s, a.logits, a.parts, static_cast<size_t>(R * columns * 2));
    ops.scatter_rows(s, {.x = a.parts,
                         .y = a.full,
                         .index = a.full_row,
                         .rows = R * ctx.tp->size(),
                         .row_bytes = columns * 2});
  }
  ops.logits_support(s, {.logits = full_view(ctx, a.full, R),
                         .inv_temp = sampling.logp_inv_temp,
                         .top_p = sampling.top_p,
                         .top_k = sampling.top_k,
                         .threshold = a.threshold,
                         .error = a.error,
                         .workspace = a.workspace});
  trace_rows(ctx, "support", a.threshold, 4, -1, 1);
}

void head_logprob(const Context& ctx, const WeightsView& w, const int32_t* target, int64_t R,
                  const RowSampling& sampling, HeadActs& a) {
  const Ops& ops = *ctx.logp;
  ops.logprob_stats(ctx.stream, {.logits = local_view(ctx, w, a, R),
                                 .inv_temp = sampling.logp_inv_temp,
                                 .threshold = sampling.limited ? a.threshold : nullptr,
                                 .target = target,
                                 .stats = a.stats,
                                 .error = a.error});
  const SliceStats* all = a.stats;
  if (ctx.tp->size() > 1) {
    ctx.tp->all_gather(ctx.stream, a.stats, a.all_stats, R * w.range.count * sizeof(SliceStats));
    all = a.all_stats;
  }
  ops.logprob_merge(ctx.stream,
                    {.stats = all, .ranks = ctx.tp->size(), .T = R, .logp = a.logp, .lse = a.lse});
  trace_rows(ctx, "logp", a.logp, 4, -1, 1);
}

void head_sample(const Context& ctx, const WeightsView& w, const SampleKey* keys, int64_t R,
                 const RowSampling& sampling, HeadActs& a, int32_t* token) {
  const Ops& ops = *ctx.logp;
  ops.sample(ctx.stream, {.logits = local_view(ctx, w, a, R),
                          .inv_temp = sampling.inv_temp,
                          .threshold = sampling.limited ? a.threshold : nullptr,
                          .keys = keys,
                          .best = a.best,
                          .workspace = a.workspace});
  const Candidate* all = a.best;
  if (ctx.tp->size() > 1) {
    ctx.tp->all_gather(ctx.stream, a.best, a.all_best, R * sizeof(Candidate));
    all = a.all_best;
  }
  ops.sample_merge(ctx.stream, {.best = all, .ranks = ctx.tp->size(), .T = R, .token = token});
}

void head_check(const Context& ctx, const HeadActs& a) {
  int32_t error = 0;
  ctx.logp->copy(ctx.stream, &error, a.error, sizeof error);
  ctx.logp->synchronize(ctx.stream);
  if (error != 0) throw Error("logits: a NaN in the model's output");
}

}  // namespace rlk
