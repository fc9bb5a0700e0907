#include "rlk/train/trainer.h"

#include <algorithm>
#include <chrono>

#include "rlk/base/carve.h"
#include "rlk/base/error.h"
#include "tree_sum.h"

namespace rlk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The tokens of one vocabulary row, by row, in the order of the rank's rows.
struct EmbeddingRows {
  std::vector<int32_t> row, row_begin, tokens;
};

EmbeddingRows group_by_id(const std::vector<int32_t>& ids, const std::vector<int32_t>& seq,
                          int64_t first, int64_t count) {
  std::vector<int32_t> order;
  for (size_t t = 0; t < ids.size(); ++t)
    if (seq[t] >= 0 && ids[t] >= first && ids[t] < first + count)
      order.push_back(static_cast<int32_t>(t));
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
  EmbeddingRows rows;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || ids[order[i]] != ids[order[i - 1]]) {
      rows.row.push_back(ids[order[i]]);
      rows.row_begin.push_back(static_cast<int32_t>(i));
    }
  }
  rows.row_begin.push_back(static_cast<int32_t>(order.size()));
  rows.tokens = std::move(order);
  return rows;
}

// The values of rows from `begin` on.
RowSampling rows_of(RowSampling sampling, int64_t begin) {
  sampling.inv_temp += begin;
  sampling.logp_inv_temp += begin;
  sampling.top_p += begin;
  sampling.top_k += begin;
  return sampling;
}

}  // namespace

// One super-batch on this rank: the host plan, its device arrays and buffers.
struct Trainer::Pass {
  const SuperBatch* plan;
  const RankRows* rows;
  Batch batch;
  AttentionRows attention_rows;  // where batch points to it
  CpMap cp;
  KvCache cache;
  int64_t R;
  const int32_t *head_index, *target;
  RowSampling sampling;
  EmbeddingRows embedding;
  const int32_t *embedding_row, *embedding_row_begin, *embedding_tokens;
  bool accumulate;              // add to the gradient of super-batches before this one
  float* direct;                // the optimizer's gradient where it is this rank's alone, else null
  int kept;                     // layers that keep their activations, the last ones
  int64_t others;               // layers whose forward pass runs again
  std::vector<LayerActs> acts;  // one for all others, if there are any; then the kept ones
  bf16* residuals;              // [others, T, D] what enters them
  ForwardScratch scratch;
  BackwardScratch back;
  HeadActs head;
  std::vector<TraceRow> trace, head_trace;  // which tokens the rows are; empty unless tracing

  LayerActs layer(int64_t l, const ModelConfig& m) const {
    LayerActs a = acts[kept == m.L ? l : std::max<int64_t>(0, l - (m.L - kept) + 1)];
    if (l < others) a.x = residuals + l * batch.T * m.D;
    return a;
  }
};

int kept_layers(const ModelConfig& m, int64_t T, int slices, int64_t bytes) {
  const int64_t each = layer_acts_bytes(m, T, slices, true), residual = T * m.D * 2;
  if (m.L * each <= bytes) return static_cast<int>(m.L);
  const int64_t spare = bytes - each - m.L * residual;
  return static_cast<int>(std::clamp<int64_t>(spare / (each - residual), 0, m.L - 1));
}

void Trainer::set_trace_rows(Pass& p, const std::vector<Sample>& samples) {
  auto row = [&](int32_t t) -> TraceRow {
    if (t < 0 || p.rows->seq[t] < 0) return {-1, -1, -1, false};
    const Sample& s = samples[p.plan->first + p.rows->seq[t]];
    return {static_cast<int32_t>(s.prompt), s.sample, p.rows->position[t],
            p.rows->position[t] + 1 < s.prompt_len};
  };
  for (int32_t t = 0; t < static_cast<int32_t>(p.rows->seq.size()); ++t) p.trace.push_back(row(t));
  for (int32_t t : p.rows->head_index) p.head_trace.push_back(row(t));
}

Trainer::Trainer(const Context& ctx, Weights& weights, World& world, const TrainerOptions& options)
    : ctx_(ctx),
      weights_(weights),
      options_(options),
      range_(options.topology.train_slices(world.rank())),
      grad_layout_(ctx.config, range_.count),
      cp_(world.group(options.topology.cp_group(world.rank()), "cp")),
      acts_(*ctx.ffn),
      scratch_(*ctx.ffn),
      pages_(*ctx.ffn),
      gathered_(*ctx.ffn),
      backward_(*ctx.ffn),
      head_(*ctx.ffn),
      head_grads_(*ctx.ffn),
      logp_(*ctx.ffn),
      upload_(*ctx.ffn) {
  if (options.use == TrainerOptions::Use::score) return;
  for (float*& grads : layer_grads_)
    grads = static_cast<float*>(world.arena_alloc(grad_layout_.layer_elements() * sizeof(float)));
  global_grads_ =
      static_cast<float*>(world.arena_alloc(grad_layout_.outer_elements() * sizeof(float)));
  optimizer_ = std::make_unique<Optimizer>(ctx_, weights_, world, options_.topology, *cp_,
                                           options_.use == TrainerOptions::Use::update);
}

Trainer::~Trainer() = default;

void Trainer::upload(Pass& p, const std::vector<Sample>& samples, const SuperBatch& plan,
                     bool reference) {
  const RankRows& rows = plan.ranks[cp_->rank()];
  p.plan = &plan;
  p.rows = &rows;
  const int32_t page = options_.page_size;
  auto input = [&](int32_t seq, int32_t position) {
    return samples[plan.first + seq].tokens[position];
  };

  // Identity page table: sequences one after the other, each on whole pages.
  const int32_t max_pages = (plan.max_inputs + page - 1) / page;
  std::vector<int32_t> table(static_cast<size_t>(plan.count) * max_pages, 0);
  int32_t pages = 0;
  for (int s = 0; s < plan.count; ++s) {
    const int32_t n = plan.seq_begin[s + 1] - plan.seq_begin[s];
    for (int32_t i = 0; i < (n + page - 1) / page; ++i) table[s * max_pages + i] = pages++;
  }
  std::vector<int32_t> ids(plan.T, 0), target(rows.head_index.size(), 0);
  for (int64_t t = 0; t < plan.T; ++t)
    if (rows.seq[t] >= 0) ids[t] = input(rows.seq[t], rows.position[t]);
  for (size_t j = 0; j < target.size(); ++j)
    if (const int32_t t = rows.head_index[j]; t >= 0)
      target[j] = input(rows.seq[t], rows.position[t] + 1);

  p.R = static_cast<int64_t>(rows.head_index.size());
  const bool greedy = options_.temperature == 0;
  const float inv = greedy ? 1.0f : 1.0f / options_.temperature;
  p.sampling.limited = !reference && !greedy && (options_.top_p < 1 || options_.top_k > 0);
  const int64_t vs = ctx_.config.vocab_slice();
  p.embedding = group_by_id(ids, rows.seq, range_.first * vs, range_.count * vs);

  // Worth two copies a layer where it leaves half as many segments.
  const AttentionOrder order = attention_order(rows);
  const bool reorder = 2 * order.segments.size() <= rows.segments.size();
  const std::vector<AttentionSegment>& segments = reorder ? order.segments : rows.segments;

  upload_.clear();
  const int64_t at_ids = upload_.add(ids), at_segments = upload_.add(segments),
                at_from = upload_.add(order.from), at_to = upload_.add(order.to),
                at_table = upload_.add(table), at_begin = upload_.add(plan.seq_begin),
                at_head = upload_.add(rows.head_index), at_target = upload_.add(target),
                at_inv = upload_.add(std::vector<float>(p.R, inv)),
                at_top_p = upload_.add(std::vector<float>(p.R, options_.top_p)),
                at_top_k = upload_.add(std::vector<int32_t>(p.R, options_.top_k)),
                at_row = upload_.add(p.embedding.row),
                at_row_begin = upload_.add(p.embedding.row_begin),
                at_tokens = upload_.add(p.embedding.tokens);
  std::vector<int64_t> at_seq, at_position, at_place;
  for (const RankRows& r : plan.ranks) {
    std::vector<int32_t> place(plan.T, -1);
    for (int64_t t = 0; t < plan.T; ++t)
      if (r.seq[t] >= 0) place[t] = plan.seq_begin[r.seq[t]] + r.position[t];
    at_seq.push_back(upload_.add(r.seq));
    at_position.push_back(upload_.add(r.position));
    at_place.push_back(upload_.add(place));
  }
  upload_.commit(ctx_.stream);

  p.cp = {};
  p.cp.T = plan.T;
  p.cp.S = plan.seq_begin.back();
  p.cp.seq_begin = upload_.at<int32_t>(at_begin);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    p.cp.seq.push_back(upload_.at<int32_t>(at_seq[r]));
    p.cp.position.push_back(upload_.at<int32_t>(at_position[r]));
    p.cp.row.push_back(upload_.at<int32_t>(at_place[r]));
  }
  int32_t max_len = 0;
  for (const AttentionSegment& s : segments) max_len = std::max(max_len, s.len);
  p.batch = {.T = plan.T,
             .ids = upload_.at<int32_t>(at_ids),
             .position = p.cp.position[cp_->rank()],
             .seq = p.cp.seq[cp_->rank()],
             .segments = upload_.at<AttentionSegment>(at_segments),
             .n_segments = static_cast<int32_t>(segments.size()),
             .max_len = max_len,
             .max_context = plan.max_inputs};
  if (reorder) p.batch.attention_rows = &p.attention_rows;
  p.attention_rows = {.n = static_cast<int64_t>(order.from.size()),
                      .from = upload_.at<int32_t>(at_from),
                      .to = upload_.at<int32_t>(at_to),
                      .q = nullptr,
                      .o = nullptr,
                      .lse = nullptr};
  p.head_index = upload_.at<int32_t>(at_head);
  p.target = upload_.at<int32_t>(at_target);
  p.sampling.inv_temp = p.sampling.logp_inv_temp = upload_.at<float>(at_inv);
  p.sampling.top_p = upload_.at<float>(at_top_p);
  p.sampling.top_k = upload_.at<int32_t>(at_top_k);
  p.embedding_row = upload_.at<int32_t>(at_row);
  p.embedding_row_begin = upload_.at<int32_t>(at_row_begin);
  p.embedding_tokens = upload_.at<int32_t>(at_tokens);

  const int n = range_.count;
  const ModelConfig& m = ctx_.config;
  p.cache = {};
  kv_page_layout(p.cache, n * static_cast<int>(m.hkv()), static_cast<int>(m.Dh), page);
  const int64_t half = pages * p.cache.page_stride;
  p.cache.k[0] = static_cast<bf16*>(pages_.ensure(2 * half * static_cast<int64_t>(sizeof(bf16))));
  p.cache.v[0] = p.cache.k[0] + half;
  p.cache.page_table = upload_.at<int32_t>(at_table);
  p.cache.max_pages = max_pages;
  gathered_.ensure(CpExchange::gathered_bytes(m, plan.T, n, cp_->size()));
}

void Trainer::forward(Pass& p, const WeightsView& view, bool keep) {
  const ModelConfig& m = ctx_.config;
  const int64_t T = p.batch.T;
  const int n = range_.count;
  const int64_t each = layer_acts_bytes(m, T, n, true);
  p.kept = keep ? kept_layers(m, T, n, options_.activation_bytes) : 0;
  const int64_t slots = p.kept + (p.kept < m.L);
  p.others = keep ? m.L - p.kept : 0;
  auto* memory = static_cast<char*>(acts_.ensure(slots * each + p.others * T * m.D * 2));
  p.acts.clear();
  for (int64_t i = 0; i < slots; ++i)
    p.acts.push_back(layer_acts_at(memory + i * each, m, T, n, true));
  p.residuals = reinterpret_cast<bf16*>(memory + slots * each);

  AttentionArgs bounds{};
  bounds.cache = p.cache;
  bounds.n_segments = p.batch.n_segments;
  bounds.max_len = p.batch.max_len;
  bounds.max_context = p.batch.max_context;
  bounds.T = T;
  bounds.H = n * static_cast<int>(m.hq());
  bounds.KH = n * static_cast<int>(m.hkv());
  bounds.Dh = static_cast<int>(m.Dh);
  const auto workspace = static_cast<int64_t>(ctx_.attention->attention_workspace(bounds));
  const int64_t rows = p.batch.attention_rows ? T : 0;
  const auto lay_out = [&](Carve c) {
    p.scratch.partial = c.take<float>(T * m.D);
    p.scratch.delta = c.take<bf16>(T * m.D);
    p.scratch.attention_workspace = c.take<char>(workspace);
    p.attention_rows.q = c.take<bf16>(rows * n * m.attn_slice());
    p.attention_rows.o = c.take<bf16>(rows * n * std::max(m.attn_slice(), 2 * m.hkv() * m.Dh));
    p.attention_rows.lse = c.take<float>(rows * n * m.hq());
    return c.bytes();
  };
  lay_out(Carve(scratch_.ensure(lay_out(Carve(nullptr)))));

  const CpExchange exchange(ctx_, *cp_, p.cp, n, gathered_.ensure(0));
  const KvPublish publish = [&](const LayerActs& a) { exchange.publish(a, p.cache); };
  if (ctx_.trace) ctx_.trace->set_rows(p.trace);
  embed(ctx_, view, p.batch, p.layer(0, m).x);
  for (int l = 0; l < m.L; ++l) {
    LayerActs a = p.layer(l, m);
    // Padding rows belong to no segment, so nothing writes their attention output or statistics.
    if (!p.batch.attention_rows)
      ctx_.attention->zero(ctx_.stream, a.o, static_cast<size_t>(T * n * m.attn_slice() * 2));
    const bf16* previous = l == 0 ? nullptr : p.layer(l - 1, m).x_mid;
    forward_layer(ctx_, view, l, p.batch, p.cache, publish, previous, a, p.scratch);
  }
}

void Trainer::logits(Pass& p, const WeightsView& view, int64_t begin, int64_t end) {
  const int64_t R = end - begin;
  void* memory = head_.ensure(head_acts_bytes(ctx_, R, range_.count, p.sampling.limited));
  p.head = head_acts_at(memory, ctx_, R, range_.count, p.sampling.limited);
  ctx_.logp->zero(ctx_.stream, p.head.error, sizeof(int32_t));
  const RowSampling sampling = rows_of(p.sampling, begin);
  const LayerActs& last = p.acts.back();
  if (ctx_.trace) ctx_.trace->set_rows({p.head_trace.begin() + begin, p.head_trace.begin() + end});
  head_logits(ctx_, view, last.x_mid, p.scratch.delta, p.head_index + begin, R, sampling, p.head);
  head_logprob(ctx_, view, p.target + begin, R, sampling, p.head);
  head_check(ctx_, p.head);
}

void Trainer::share_logp(const Pass& p, const std::vector<float>& mine,
                         std::vector<Sample>& samples, std::vector<float> Sample::*which) {
  int64_t longest = 0;
  for (const RankRows& r : p.plan->ranks)
    longest = std::max(longest, static_cast<int64_t>(r.head_index.size()));
  auto* device = static_cast<float*>(logp_.ensure((cp_->size() + 1) * longest * 4 + 4));
  ctx_.ffn->copy(ctx_.stream, device, mine.data(), mine.size() * sizeof(float));
  cp_->all_gather(ctx_.stream, device, device + longest, static_cast<size_t>(longest) * 4);
  std::vector<float> all(cp_->size() * longest);
  ctx_.ffn->copy(ctx_.stream, all.data(), device + longest, all.size() * sizeof(float));
  ctx_.ffn->synchronize(ctx_.stream);
  for (int i = 0; i < p.plan->count; ++i) {
    Sample& sample = samples[p.plan->first + i];
    (sample.*which).resize(sample.response_len());
  }
  for (int r = 0; r < cp_->size(); ++r) {
    const RankRows& rows = p.plan->ranks[r];
    for (size_t j = 0; j < rows.head_index.size(); ++j) {
      const int32_t t = rows.head_index[j];
      if (t < 0) continue;
      Sample& sample = samples[p.plan->first + rows.seq[t]];
      (sample.*which)[rows.position[t] + 1 - sample.prompt_len] = all[r * longest + j];
    }
  }
}

void Trainer::score(const WeightsView& view, bool reference, std::vector<Sample>& samples,
                    std::vector<float> Sample::*which) {
  const auto plans = make_super_batches(samples, 0, static_cast<int>(samples.size()), cp_->size(),
                                        options_.super_batch_tokens);
  Trace* const trace = ctx_.trace;
  ctx_.trace = nullptr;  // the update's own forward pass is the traced one
  for (const SuperBatch& plan : plans) {
    Pass p{};
    upload(p, samples, plan, reference);
    forward(p, view, false);
    std::vector<float> logp(p.R);
    for (int64_t begin = 0; begin < p.R; begin += options_.max_tokens) {
      const int64_t end = std::min(p.R, begin + options_.max_tokens);
      logits(p, view, begin, end);
      ctx_.ffn->copy(ctx_.stream, logp.data() + begin, p.head.logp,
                     static_cast<size_t>(end - begin) * sizeof(float));
      ctx_.ffn->synchronize(ctx_.stream);
    }
    share_logp(p, logp, samples, which);
  }
  ctx_.trace = trace;
}

void Trainer::backward_scratch(Pass& p) {
  const ModelConfig& m = ctx_.config;
  const int n = range_.count;
  AttentionBwdArgs bounds{};
  bounds.n_segments = p.batch.n_segments;
  bounds.max_len = p.batch.max_len;
  bounds.max_context = p.batch.max_context;
  bounds.S = p.cp.S;
  bounds.H = n * static_cast<int>(m.hq());
  bounds.KH = n * static_cast<int>(m.hkv());
  bounds.Dh = static_cast<int>(m.Dh);
  const int64_t T = p.batch.T;
  const int leaves = p.rows->leaves.count;
  void* memory = backward_.ensure(backward_scratch_bytes(ctx_, T, p.cp.S, n, leaves, bounds));
  p.back = backward_scratch_at(memory, ctx_, T, p.cp.S, n, leaves, bounds);
}

// Forward and backward of the head, subtree by subtree of its rows: no more logits are in memory at
// once, and the weight gradients are joined as one call would join them. Returns the log-probs.
std::vector<float> Trainer::head(Pass& p, const WeightsView& view, const RowGradient& gradient) {
  const ModelConfig& m = ctx_.config;
  const Ops& ops = *ctx_.logp;
  const auto chunks = leaf_chunks(p.rows->head_leaves, options_.max_tokens);
  const auto count = static_cast<int>(chunks.size());
  const int64_t n = range_.count * m.vocab_slice() * m.D;
  const int64_t for_head = TreeSum::scratch_floats(count, n),
                for_norm = TreeSum::scratch_floats(count, m.D);
  auto* scratch = static_cast<float*>(
      head_grads_.ensure((for_head + for_norm) * static_cast<int64_t>(sizeof(float))));
  TreeSum dw(ops, ctx_.stream, count, n, outer_grads(p, Storage::head), scratch);
  TreeSum dw_norm(ops, ctx_.stream, count, m.D, outer_grads(p, Storage::final_norm),
                  scratch + for_head);
  ops.zero(ctx_.stream, p.back.dres, static_cast<size_t>(p.batch.T * m.D) * sizeof(float));
  std::vector<float> logp(p.R), g(p.R);
  for (const LeafChunk& c : chunks) {
    const int64_t R = c.end - c.begin;
    if (R > 0) {
      logits(p, view, c.begin, c.end);
      ops.copy(ctx_.stream, logp.data() + c.begin, p.head.logp, R * sizeof(float));
      ops.synchronize(ctx_.stream);
      for (int64_t j = c.begin; j < c.end; ++j) g[j] = gradient(j, logp[j]);
      auto* device_g = static_cast<float*>(logp_.ensure(p.R * 4));
      ops.copy(ctx_.stream, device_g, g.data() + c.begin, R * sizeof(float));
      backward_head(ctx_, view, p.head_index + c.begin, p.target + c.begin, device_g, R, c.leaves,
                    rows_of(p.sampling, c.begin), p.head, p.back, dw.next(), dw_norm.next());
    } else {
      ops.zero(ctx_.stream, dw.next(), static_cast<size_t>(n) * sizeof(float));
      ops.zero(ctx_.stream, dw_norm.next(), static_cast<size_t>(m.D) * sizeof(float));
    }
    dw.join();
    dw_norm.join();
  }
  return logp;
}

float* Trainer::layer_grads(const Pass& p, int layer) const {
  return p.direct ? p.direct + grad_layout_.layer_begin(layer) : layer_grads_[layer % 2];
}

float* Trainer::outer_grads(const Pass& p, Storage s) const {
  return p.direct ? p.direct + grad_layout_.offset(s, -1)
                  : global_grads_ + grad_layout_.outer_offset(s);
}

void Trainer::reduce(const Pass& p, Storage s, int layer) {
  if (p.direct) return;
  optimizer_->reduce(s, layer, layer < 0 ? global_grads_ : layer_grads(p, layer), p.accumulate);
}

void Trainer::backward(Pass& p, const WeightsView& view) {
  const ModelConfig& m = ctx_.config;
  const int n = range_.count;
  const Ops& ops = *ctx_.ffn;
  const Leaves& leaves = p.rows->leaves;
  if (ctx_.trace) ctx_.trace->set_rows(p.trace);
  cp_->barrier(ctx_.stream);
  reduce(p, m.tied ? Storage::embed : Storage::head, -1);
  reduce(p, Storage::final_norm, -1);

  const CpExchange exchange(ctx_, *cp_, p.cp, n, gathered_.ensure(0));
  const KvPublish publish = [&](const LayerActs& a) { exchange.publish(a, p.cache); };
  for (int l = static_cast<int>(m.L) - 1; l >= 0; --l) {
    LayerActs a = p.layer(l, m);
    if (l < p.others) {
      Context quiet = ctx_;
      quiet.trace = nullptr;
      forward_layer(quiet, view, l, p.batch, p.cache, publish, nullptr, a, p.scratch, false);
    }
    backward_layer(ctx_, view, l, p.batch, exchange, leaves, a, p.back,
                   {layer_grads(p, l), &grad_layout_});
    cp_->barrier(ctx_.stream);
    for (Storage s : {Storage::input_norm, Storage::qkv, Storage::q_norm, Storage::k_norm,
                      Storage::o, Storage::post_norm, Storage::gate_up, Storage::down})
      reduce(p, s, l);
  }
  backward_embedding(p);
  ops.synchronize(ctx_.stream);
  cp_->barrier(ctx_.stream);  // before the next super-batch writes the regions
}

void Trainer::backward_embedding(Pass& p) {
  const ModelConfig& m = ctx_.config;
  const int64_t vs = m.vocab_slice();
  // A tied embedding adds to the head's gradient: it cannot be written in its place.
  if (m.tied) p.direct = nullptr;
  float* dw = outer_grads(p, Storage::embed);
  ctx_.ffn->zero(ctx_.stream, dw, static_cast<size_t>(range_.count * vs * m.D) * sizeof(float));
  ctx_.ffn->embedding_bwd(ctx_.stream, {.dx = p.back.dres,
                                        .dw = dw,
                                        .D = m.D,
                                        .first_row = range_.first * vs,
                                        .rows = static_cast<int64_t>(p.embedding.row.size()),
                                        .row = p.embedding_row,
                                        .row_begin = p.embedding_row_begin,
                                        .tokens = p.embedding_tokens,
                                        .leaves = p.rows->leaves});
  cp_->barrier(ctx_.stream);
  p.accumulate = p.accumulate || m.tied;
  reduce(p, Storage::embed, -1);
}

UpdateResult Trainer::gradients(std::vector<Sample>& samples, int first, int count,
                                const TokenGradient& token_gradient) {
  RLK_CHECK(optimizer_, count);
  UpdateResult result;
  const WeightsView view = weights_.view(range_);
  const auto plans =
      make_super_batches(samples, first, count, cp_->size(), options_.super_batch_tokens);
  std::vector<double> weight;  // of a token of each sample
  for (int i = first; i < first + count; ++i)
    weight.push_back(token_weight(samples, first, count, i, options_.grpo));
  for (const SuperBatch& plan : plans) {
    auto start = std::chrono::steady_clock::now();
    Pass p{};
    upload(p, samples, plan, false);
    if (ctx_.trace) set_trace_rows(p, samples);
    p.accumulate = &plan != &plans.front();
    p.direct = p.accumulate ? nullptr : optimizer_->whole_gradient();
    forward(p, view, true);
    backward_scratch(p);
    const std::vector<float> logp = head(p, view, [&](int64_t j, float row_logp) {
      const int32_t row = p.rows->head_index[j];
      if (row < 0) return 0.0f;
      const int i = plan.first + p.rows->seq[row];
      const int token = p.rows->position[row] + 1 - samples[i].prompt_len;
      return -static_cast<float>(
          token_gradient ? token_gradient(i, token, row_logp)
                         : weight[i - first] *
                               token_loss(samples[i], token, row_logp, options_.grpo).derivative);
    });
    share_logp(p, logp, samples, &Sample::train_logp);
    result.forward_s += seconds_since(start);
    start = std::chrono::steady_clock::now();
    backward(p, view);
    result.backward_s += seconds_since(start);
  }
  return result;
}

UpdateResult Trainer::update(std::vector<Sample>& samples, int first, int count, int64_t t,
                             const TokenGradient& token_gradient) {
  RLK_CHECK(options_.use == TrainerOptions::Use::update, t);
  UpdateResult result = gradients(samples, first, count, token_gradient);
  auto start = std::chrono::steady_clock::now();
  result.gradient_norm = optimizer_->gradient_norm();
  optimizer_->step(options_.adamw, t, result.gradient_norm);
  result.optimizer_s = seconds_since(start);
  start = std::chrono::steady_clock::now();
  weights_.sync(*ctx_.ffn, ctx_.stream);
  for (const Ops* ops : {ctx_.attention, ctx_.ffn}) {
    if (!ops->weights_changed) continue;
    ops->weights_changed(ctx_.stream);
    ops->synchronize(ctx_.stream);
    break;  // native modules share their copies
  }
  result.sync_s = seconds_since(start);
  return result;
}

}  // namespace rlk
