#include "forward_pass.h"

#include "rlk/base/carve.h"
#include "rlk/base/error.h"

namespace rlk {

ForwardPass::ForwardPass(const Context& ctx, Topology::Range slices, LayerCache cache)
    : ctx_(ctx),
      slices_(slices),
      cache_(std::move(cache)),
      acts_(*ctx.ffn),
      scratch_memory_(*ctx.ffn),
      head_memory_(*ctx.ffn),
      tokens_(*ctx.ffn),
      upload_(*ctx.ffn) {}

ForwardPass::~ForwardPass() {
  if (graph_) ctx_.ffn->graph_destroy(graph_);
}

void ForwardPass::prepare(const StepRows& rows, const std::vector<int32_t>& page_table) {
  const ModelConfig& m = ctx_.config;
  const int64_t T = rows.T(), R = rows.R();
  upload_.clear();
  const int64_t ids = upload_.add(rows.ids), position = upload_.add(rows.position),
                seq = upload_.add(rows.seq), segments = upload_.add(rows.segments),
                table = upload_.add(page_table), index = upload_.add(rows.head_index),
                inv_temp = upload_.add(rows.inv_temp), logp_inv = upload_.add(rows.logp_inv_temp),
                top_p = upload_.add(rows.top_p), top_k = upload_.add(rows.top_k),
                keys = upload_.add(rows.keys);
  upload_.commit(ctx_.stream);
  batch_ = {.T = T,
            .ids = upload_.at<int32_t>(ids),
            .position = upload_.at<int32_t>(position),
            .seq = upload_.at<int32_t>(seq),
            .segments = upload_.at<AttentionSegment>(segments),
            .n_segments = static_cast<int32_t>(rows.segments.size()),
            .max_len = rows.max_len,
            .max_context = rows.max_context};
  page_table_ = upload_.at<int32_t>(table);
  head_index_ = upload_.at<int32_t>(index);
  keys_ = upload_.at<SampleKey>(keys);
  sampling_ = {.inv_temp = upload_.at<float>(inv_temp),
               .logp_inv_temp = upload_.at<float>(logp_inv),
               .top_p = upload_.at<float>(top_p),
               .top_k = upload_.at<int32_t>(top_k),
               .limited = rows.limited};

  const int n = slices_.count;
  layer_ = layer_acts_at(acts_.ensure(layer_acts_bytes(m, T, n, false)), m, T, n, false);
  AttentionArgs bounds{};
  bounds.cache = cache_(0, nullptr);
  bounds.n_segments = batch_.n_segments;
  bounds.max_len = batch_.max_len;
  bounds.max_context = batch_.max_context;
  bounds.T = T;
  bounds.H = n * static_cast<int>(m.hq());
  bounds.KH = n * static_cast<int>(m.hkv());
  bounds.Dh = static_cast<int>(m.Dh);
  auto carve_scratch = [&](void* base) {
    Carve carve(base);
    scratch_.partial = carve.take<float>(T * m.D);
    scratch_.delta = carve.take<bf16>(T * m.D);
    scratch_.attention_workspace =
        carve.take<char>(static_cast<int64_t>(ctx_.attention->attention_workspace(bounds)));
    return carve.bytes();
  };
  carve_scratch(scratch_memory_.ensure(carve_scratch(nullptr)));
  if (R == 0) return;
  head_ = head_acts_at(head_memory_.ensure(head_acts_bytes(ctx_, R, n, rows.limited)), ctx_, R, n,
                       rows.limited);
  ctx_.logp->zero(ctx_.stream, head_.error, sizeof(int32_t));
  token_ = static_cast<int32_t*>(tokens_.ensure(R * 4));
}

void ForwardPass::enqueue(const WeightsView& view, const StepRows& rows) {
  if (ctx_.trace) ctx_.trace->set_rows(rows.trace);
  embed(ctx_, view, batch_, layer_.x);
  for (int l = 0; l < ctx_.config.L; ++l)
    forward_layer(ctx_, view, l, batch_, cache_(l, page_table_), nullptr,
                  l == 0 ? nullptr : layer_.x_mid, layer_, scratch_);
  if (rows.R() == 0) return;
  if (ctx_.trace) ctx_.trace->set_rows(rows.head_trace);
  head_logits(ctx_, view, layer_.x_mid, scratch_.delta, head_index_, rows.R(), sampling_, head_);
  head_sample(ctx_, view, keys_, rows.R(), sampling_, head_, token_);
  head_logprob(ctx_, view, token_, rows.R(), sampling_, head_);
}

std::vector<Drawn> ForwardPass::read(int64_t R) {
  if (R == 0) return {};
  head_check(ctx_, head_);
  std::vector<int32_t> tokens(R);
  std::vector<float> logp(R);
  ctx_.logp->copy(ctx_.stream, tokens.data(), token_, R * sizeof(int32_t));
  ctx_.logp->copy(ctx_.stream, logp.data(), head_.logp, R * sizeof(float));
  ctx_.logp->synchronize(ctx_.stream);
  std::vector<Drawn> drawn(R);
  for (int64_t i = 0; i < R; ++i) {
    // Where all logits are NaN, a rank that holds none but padding sees it here alone.
    if (tokens[i] >= ctx_.config.vocab) throw Error("logits: a NaN in the model's output");
    drawn[i] = {tokens[i], logp[i]};
  }
  return drawn;
}

std::vector<Drawn> ForwardPass::run(const WeightsView& view, const StepRows& rows,
                                    const std::vector<int32_t>& page_table) {
  prepare(rows, page_table);
  enqueue(view, rows);
  return read(rows.R());
}

void ForwardPass::capture(const WeightsView& view, const StepRows& rows,
                          const std::vector<int32_t>& page_table) {
  RLK_CHECK(!graph_ && !ctx_.trace && rows.decode);
  prepare(rows, page_table);
  enqueue(view, rows);  // idle rows: loads kernels and lets native libraries make what they keep
  ctx_.ffn->synchronize(ctx_.stream);
  ctx_.ffn->capture_begin(ctx_.stream);
  enqueue(view, rows);
  graph_ = ctx_.ffn->capture_end(ctx_.stream);
}

std::vector<Drawn> ForwardPass::replay(const StepRows& rows,
                                       const std::vector<int32_t>& page_table) {
  RLK_CHECK(graph_ && rows.T() == batch_.T, rows.T(), batch_.T);
  prepare(rows, page_table);  // the same shape: every address stays
  ctx_.ffn->graph_launch(ctx_.stream, graph_);
  return read(rows.R());
}

}  // namespace rlk
