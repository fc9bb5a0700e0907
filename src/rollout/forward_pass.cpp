#include "forward_pass.h"

#include <utility>

#include "rlk/base/carve.h"
#include "rlk/base/error.h"

namespace rlk {

PassMemory::PassMemory(const Context& ctx, Topology::Range slices, const KvCache& layout)
    : ctx_(ctx),
      slices_(slices),
      layout_(layout),
      layer_(*ctx.ffn),
      scratch_(*ctx.ffn),
      head_(*ctx.ffn),
      token_(*ctx.ffn) {}

size_t PassMemory::attention_workspace(const PassShape& s) const {
  const ModelConfig& m = ctx_.config;
  AttentionArgs bounds{};
  bounds.cache = layout_;
  bounds.n_segments = s.n_segments;
  bounds.max_len = s.max_len;
  bounds.max_context = s.max_context;
  bounds.T = s.T;
  bounds.H = slices_.count * static_cast<int>(m.hq());
  bounds.KH = slices_.count * static_cast<int>(m.hkv());
  bounds.Dh = static_cast<int>(m.Dh);
  return ctx_.attention->attention_workspace(bounds);
}

PassMemory::Buffers PassMemory::at(const PassShape& s) {
  const ModelConfig& m = ctx_.config;
  const int n = slices_.count;
  Buffers b{};
  b.layer = layer_acts_at(layer_.ensure(layer_acts_bytes(m, s.T, n, false)), m, s.T, n, false);
  const auto workspace = static_cast<int64_t>(attention_workspace(s));
  auto carve_scratch = [&](void* base) {
    Carve carve(base);
    b.scratch.partial = carve.take<float>(s.T * m.D);
    b.scratch.delta = carve.take<bf16>(s.T * m.D);
    b.scratch.attention_workspace = carve.take<char>(workspace);
    return carve.bytes();
  };
  carve_scratch(scratch_.ensure(carve_scratch(nullptr)));
  if (s.R == 0) return b;
  b.head =
      head_acts_at(head_.ensure(head_acts_bytes(ctx_, s.R, n, s.limited)), ctx_, s.R, n, s.limited);
  b.token = static_cast<int32_t*>(token_.ensure(s.R * static_cast<int64_t>(sizeof(int32_t))));
  return b;
}

ForwardPass::ForwardPass(const Context& ctx, Topology::Range slices, LayerCache cache,
                         PassMemory& memory, std::vector<int32_t> stop)
    : ctx_(ctx),
      slices_(slices),
      cache_(std::move(cache)),
      memory_(memory),
      stop_(std::move(stop)),
      upload_(*ctx.ffn) {}

ForwardPass::~ForwardPass() {
  if (graph_) ctx_.ffn->graph_destroy(graph_);
}

void ForwardPass::prepare(const StepRows& rows, const std::vector<int32_t>& page_table,
                          int32_t most_steps) {
  const int64_t T = rows.T(), R = rows.R();
  upload_.clear();
  const int64_t ids = upload_.add(rows.ids), position = upload_.add(rows.position),
                seq = upload_.add(rows.seq), segments = upload_.add(rows.segments),
                table = upload_.add(page_table), index = upload_.add(rows.head_index),
                inv_temp = upload_.add(rows.inv_temp), logp_inv = upload_.add(rows.logp_inv_temp),
                top_p = upload_.add(rows.top_p), top_k = upload_.add(rows.top_k),
                keys = upload_.add(rows.keys), limit = upload_.add(rows.draws),
                stop = upload_.add(stop_), count = upload_.add(std::vector<int32_t>(R, 0)),
                drawn = upload_.add(std::vector<Drawn>(R * most_steps, {-1, 0}));
  upload_.commit(ctx_.stream);
  batch_ = {.T = T,
            .ids = upload_.at<int32_t>(ids),
            .position = upload_.at<int32_t>(position),
            .seq = upload_.at<int32_t>(seq),
            .segments = upload_.at<AttentionSegment>(segments),
            .n_segments = static_cast<int32_t>(rows.segments.size()),
            .max_len = rows.max_len,
            .max_context = rows.max_context,
            // Older keys, segments and page table are there before the embedding op starts.
            .past_ready = true};
  page_table_ = upload_.at<int32_t>(table);
  head_index_ = rows.every_row_draws() ? nullptr : upload_.at<int32_t>(index);
  sampling_ = {.inv_temp = upload_.at<float>(inv_temp),
               .logp_inv_temp = upload_.at<float>(logp_inv),
               .top_p = upload_.at<float>(top_p),
               .top_k = upload_.at<int32_t>(top_k),
               .limited = rows.limited};
  buffers_ = memory_.at({.T = T,
                         .R = R,
                         .n_segments = batch_.n_segments,
                         .max_len = batch_.max_len,
                         .max_context = batch_.max_context,
                         .limited = rows.limited});
  decode_ = {.token = buffers_.token,
             .logp = buffers_.head.logp,
             .stop = upload_.at<int32_t>(stop),
             .n_stop = static_cast<int32_t>(stop_.size()),
             .vocab = ctx_.config.vocab,
             .limit = upload_.at<int32_t>(limit),
             .count = upload_.at<int32_t>(count),
             .drawn = upload_.at<Drawn>(drawn),
             .drawn_stride = most_steps,
             .ids = upload_.at<int32_t>(ids),
             .position = upload_.at<int32_t>(position),
             .seq = upload_.at<int32_t>(seq),
             .segments = upload_.at<AttentionSegment>(segments),
             .keys = upload_.at<SampleKey>(keys),
             .T = T};
  if (R > 0) ctx_.logp->zero(ctx_.stream, buffers_.head.error, sizeof(int32_t));
  // Attention leaves idle rows alone, and what another pass left there may be NaN.
  if (rows.decode)
    ctx_.attention->zero(ctx_.stream, buffers_.layer.o,
                         static_cast<size_t>(T * slices_.count * ctx_.config.attn_slice()) * 2);
}

void ForwardPass::forward(const WeightsView& view, const StepRows& rows) {
  PassMemory::Buffers& b = buffers_;
  if (ctx_.trace) ctx_.trace->set_rows(rows.trace);
  embed(ctx_, view, batch_, b.layer.x);
  for (int l = 0; l < ctx_.config.L; ++l)
    forward_layer(ctx_, view, l, batch_, cache_(l, page_table_), nullptr,
                  l == 0 ? nullptr : b.layer.x_mid, b.layer, b.scratch);
  if (rows.R() == 0) return;
  if (ctx_.trace) ctx_.trace->set_rows(rows.head_trace);
  head_logits(ctx_, view, b.layer.x_mid, b.scratch.delta, head_index_, rows.R(), sampling_, b.head);
  head_sample(ctx_, view, decode_.keys, rows.R(), sampling_, b.head, b.token);
  head_logprob(ctx_, view, b.token, rows.R(), sampling_, b.head);
}

void ForwardPass::advance() {
  ctx_.logp->decode_advance(ctx_.stream, decode_);
}

std::vector<Drawn> ForwardPass::read_decode(int64_t R, int32_t steps) {
  const int64_t stride = decode_.drawn_stride;
  std::vector<Drawn> all(R * stride), drawn(R * steps);
  ctx_.logp->copy(ctx_.stream, all.data(), decode_.drawn, all.size() * sizeof(Drawn));
  head_check(ctx_, buffers_.head);
  for (int64_t r = 0; r < R; ++r)
    for (int32_t i = 0; i < steps; ++i) drawn[r * steps + i] = all[r * stride + i];
  return drawn;
}

std::vector<Drawn> ForwardPass::read_once(int64_t R) {
  if (R == 0) return {};
  std::vector<int32_t> tokens(R);
  std::vector<float> logp(R);
  ctx_.logp->copy(ctx_.stream, tokens.data(), buffers_.token, R * sizeof(int32_t));
  ctx_.logp->copy(ctx_.stream, logp.data(), buffers_.head.logp, R * sizeof(float));
  head_check(ctx_, buffers_.head);
  std::vector<Drawn> drawn(R);
  for (int64_t i = 0; i < R; ++i) {
    // Where all logits are NaN, a rank that holds none but padding sees it here alone.
    if (tokens[i] >= ctx_.config.vocab) throw Error("logits: a NaN in the model's output");
    drawn[i] = {tokens[i], logp[i]};
  }
  return drawn;
}

std::vector<Drawn> ForwardPass::run(const WeightsView& view, const StepRows& rows,
                                    const std::vector<int32_t>& page_table, int32_t steps) {
  if (!rows.decode) {
    RLK_CHECK(steps == 1 && !graph_, steps);
    prepare(rows, page_table, 0);
    forward(view, rows);
    return read_once(rows.R());
  }
  const auto most_steps = graph_ ? static_cast<int32_t>(decode_.drawn_stride) : steps;
  RLK_CHECK(steps <= most_steps && (!graph_ || rows.T() == batch_.T), steps, rows.T(), batch_.T);
  prepare(rows, page_table, most_steps);  // of a graph: the same shape, every address stays
  for (int32_t i = 0; i < steps; ++i) {
    if (graph_) {
      ctx_.ffn->graph_launch(ctx_.stream, graph_);
    } else {
      forward(view, rows);
      advance();
    }
  }
  return read_decode(rows.R(), steps);
}

void ForwardPass::capture(const WeightsView& view, const StepRows& rows,
                          const std::vector<int32_t>& page_table, int32_t most_steps) {
  RLK_CHECK(!graph_ && !ctx_.trace && rows.decode);
  prepare(rows, page_table, most_steps);
  forward(view, rows);  // idle rows: loads kernels and lets native libraries make what they keep
  ctx_.ffn->synchronize(ctx_.stream);
  ctx_.ffn->capture_begin(ctx_.stream);
  forward(view, rows);
  advance();
  graph_ = ctx_.ffn->capture_end(ctx_.stream);
}

}  // namespace rlk
