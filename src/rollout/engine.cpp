#include "rlk/rollout/engine.h"

#include <algorithm>

#include "rlk/base/carve.h"
#include "rlk/base/error.h"

namespace rlk {
namespace {

KvCache page_layout(const ModelConfig& m, int slices, int32_t page_size) {
  KvCache cache{};
  kv_page_layout(cache, slices * static_cast<int>(m.hkv()), static_cast<int>(m.Dh), page_size);
  return cache;
}

// Host rows of one forward pass.
struct Rows {
  std::vector<int32_t> ids, position, seq, head_index;
  std::vector<AttentionSegment> segments;
  std::vector<float> inv_temp, logp_inv_temp, top_p;
  std::vector<int32_t> top_k;
  std::vector<SampleKey> keys;
  std::vector<TraceRow> trace, head_trace;
  int32_t max_len = 0, max_context = 0;
  bool limited = false;
};

void add_sampling_row(const SamplingParams& s, Rows& rows) {
  const bool greedy = s.temperature == 0;
  rows.inv_temp.push_back(greedy ? 0.0f : 1.0f / s.temperature);
  rows.logp_inv_temp.push_back(greedy ? 1.0f : 1.0f / s.temperature);
  rows.top_p.push_back(greedy ? 1.0f : s.top_p);
  rows.top_k.push_back(greedy ? -1 : s.top_k);
  rows.limited |= !greedy && (s.top_p < 1 || s.top_k > 0);
}

Rows collect_rows(const std::vector<Work>& work, const std::vector<GenerateRequest>& requests,
                  const Scheduler& scheduler, uint64_t key) {
  Rows rows;
  for (const Work& w : work) {
    const GenerateRequest& request = requests[w.request];
    const std::vector<int32_t>& tokens = scheduler.tokens(w.request);
    rows.segments.push_back({w.slot, w.begin, w.len, static_cast<int32_t>(rows.ids.size())});
    rows.max_len = std::max(rows.max_len, w.len);
    rows.max_context = std::max(rows.max_context, w.begin + w.len);
    for (int32_t p = w.begin; p < w.begin + w.len; ++p) {
      rows.ids.push_back(tokens[p]);
      rows.position.push_back(p);
      rows.seq.push_back(w.slot);
      rows.trace.push_back(
          {static_cast<int32_t>(request.prompt_index), request.sample_index, p});
    }
    if (!w.sample) continue;
    rows.head_index.push_back(static_cast<int32_t>(rows.ids.size()) - 1);
    rows.head_trace.push_back(rows.trace.back());
    rows.keys.push_back({.key = key, .prompt = static_cast<uint32_t>(request.prompt_index),
                         .sample = static_cast<uint32_t>(request.sample_index),
                         .position = static_cast<uint32_t>(w.begin + w.len)});
    add_sampling_row(request.sampling, rows);
  }
  return rows;
}

}  // namespace

int64_t RolloutEngine::kv_bytes(const ModelConfig& m, const RolloutOptions& options, int rank) {
  const int slices = options.topology.rollout_slices(rank).count;
  return 2 * m.L * options.pages_per_rank *
         page_layout(m, slices, options.page_size).page_stride * static_cast<int64_t>(sizeof(bf16));
}

RolloutEngine::RolloutEngine(const Context& ctx, World& world, const RolloutOptions& options)
    : ctx_(ctx),
      options_(options),
      range_(options.topology.rollout_slices(world.rank())),
      cp_(world.group(options.topology.rollout_cp_group(world.rank()), "rollout cp")),
      page_elements_(page_layout(ctx.config, range_.count, options.page_size).page_stride),
      acts_(*ctx.ffn),
      scratch_(*ctx.ffn),
      head_(*ctx.ffn),
      tokens_(*ctx.ffn),
      exchange_(*ctx.ffn),
      upload_(*ctx.ffn) {
  for (int64_t l = 0; l < ctx.config.L; ++l)
    for (auto* half : {&k_, &v_})
      half->push_back(static_cast<bf16*>(
          world.arena_alloc(options.pages_per_rank * page_elements_ * sizeof(bf16))));
}

KvCache RolloutEngine::cache(int layer, const int32_t* page_table) const {
  KvCache cache = page_layout(ctx_.config, range_.count, options_.page_size);
  for (int r = 0; r < cp_->size(); ++r) {
    cache.k[r] = static_cast<bf16*>(cp_->peer(r, k_[layer]));
    cache.v[r] = static_cast<bf16*>(cp_->peer(r, v_[layer]));
  }
  cache.page_table = page_table;
  cache.max_pages = static_cast<int32_t>(max_pages_);
  return cache;
}

void RolloutEngine::copy_pages(const StepPlan& plan) {
  for (const PageCopy& copy : plan.copies) {
    if (copy.home != cp_->rank()) continue;
    for (int l = 0; l < ctx_.config.L; ++l) {
      const KvCache c = cache(l, nullptr);
      for (bf16* const* half : {c.k, c.v}) {
        auto at = [&](int32_t e) { return half[e >> 24] + (e & 0xffffff) * c.page_stride; };
        ctx_.ffn->copy(ctx_.stream, at(copy.to), at(copy.from),
                       static_cast<size_t>(c.page_stride) * sizeof(bf16));
      }
    }
  }
}

std::vector<RolloutEngine::Drawn> RolloutEngine::run(const WeightsView& view,
                                                     const std::vector<Work>& work,
                                                     const std::vector<GenerateRequest>& requests,
                                                     const Scheduler& scheduler, uint64_t key) {
  const ModelConfig& m = ctx_.config;
  const Rows rows = collect_rows(work, requests, scheduler, key);
  const auto T = static_cast<int64_t>(rows.ids.size());
  const auto R = static_cast<int64_t>(rows.head_index.size());
  upload_.clear();
  const int64_t ids = upload_.add(rows.ids), position = upload_.add(rows.position),
                seq = upload_.add(rows.seq), segments = upload_.add(rows.segments),
                table = upload_.add(scheduler.page_table()), index = upload_.add(rows.head_index),
                inv_temp = upload_.add(rows.inv_temp), logp_inv = upload_.add(rows.logp_inv_temp),
                top_p = upload_.add(rows.top_p), top_k = upload_.add(rows.top_k),
                keys = upload_.add(rows.keys);
  upload_.commit(ctx_.stream);
  const Batch batch{.T = T, .ids = upload_.at<int32_t>(ids),
                    .position = upload_.at<int32_t>(position), .seq = upload_.at<int32_t>(seq),
                    .segments = upload_.at<AttentionSegment>(segments),
                    .n_segments = static_cast<int32_t>(rows.segments.size()),
                    .max_len = rows.max_len, .max_context = rows.max_context};

  LayerActs a = layer_acts_at(acts_.ensure(layer_acts_bytes(m, T, range_.count, false)), m, T,
                              range_.count, false);
  AttentionArgs bounds{};
  bounds.cache = cache(0, nullptr);
  bounds.n_segments = batch.n_segments;
  bounds.max_len = batch.max_len;
  bounds.max_context = batch.max_context;
  bounds.T = T;
  bounds.H = range_.count * static_cast<int>(m.hq());
  bounds.KH = range_.count * static_cast<int>(m.hkv());
  bounds.Dh = static_cast<int>(m.Dh);
  ForwardScratch scratch{};
  auto carve_scratch = [&](void* base) {
    Carve carve(base);
    scratch.partial = carve.take<float>(T * m.D);
    scratch.delta = carve.take<bf16>(T * m.D);
    scratch.attention_workspace =
        carve.take<char>(static_cast<int64_t>(ctx_.attention->attention_workspace(bounds)));
    return carve.bytes();
  };
  carve_scratch(scratch_.ensure(carve_scratch(nullptr)));

  if (ctx_.trace) ctx_.trace->set_rows(rows.trace);
  embed(ctx_, view, batch, a.x);
  for (int l = 0; l < m.L; ++l)
    forward_layer(ctx_, view, l, batch, cache(l, upload_.at<int32_t>(table)), nullptr,
                  l == 0 ? nullptr : a.x_mid, a, scratch);
  ++steps_;
  if (R == 0) return {};

  if (ctx_.trace) ctx_.trace->set_rows(rows.head_trace);
  const RowSampling sampling{.inv_temp = upload_.at<float>(inv_temp),
                             .logp_inv_temp = upload_.at<float>(logp_inv),
                             .top_p = upload_.at<float>(top_p), .top_k = upload_.at<int32_t>(top_k),
                             .limited = rows.limited};
  HeadActs head =
      head_acts_at(head_.ensure(head_acts_bytes(ctx_, R, range_.count, rows.limited)), ctx_, R,
                   range_.count, rows.limited);
  ctx_.logp->zero(ctx_.stream, head.error, sizeof(int32_t));
  auto* token = static_cast<int32_t*>(tokens_.ensure(R * 4));
  head_logits(ctx_, view, a.x_mid, scratch.delta, upload_.at<int32_t>(index), R, sampling, head);
  head_sample(ctx_, view, upload_.at<SampleKey>(keys), R, sampling, head, token);
  head_logprob(ctx_, view, token, R, sampling, head);
  head_check(ctx_, head);
  std::vector<int32_t> tokens(R);
  std::vector<float> logp(R);
  ctx_.logp->copy(ctx_.stream, tokens.data(), token, R * sizeof(int32_t));
  ctx_.logp->copy(ctx_.stream, logp.data(), head.logp, R * sizeof(float));
  ctx_.logp->synchronize(ctx_.stream);
  std::vector<Drawn> drawn(R);
  for (int64_t i = 0; i < R; ++i) drawn[i] = {tokens[i], logp[i]};
  return drawn;
}

std::vector<GenerateResult> RolloutEngine::generate(const WeightsView& view,
                                                    const std::vector<GenerateRequest>& requests,
                                                    uint64_t rollout_seed, uint64_t step,
                                                    const OnToken& on_token) {
  std::vector<Request> queue;
  int64_t longest = 0;
  for (const GenerateRequest& r : requests) {
    queue.push_back({r.prompt_index, r.prompt, r.max_new});
    longest = std::max(longest, static_cast<int64_t>(r.prompt.size()) + r.max_new);
  }
  Scheduler scheduler({.cp = cp_->size(), .page_size = options_.page_size,
                       .pages_per_shard = options_.pages_per_rank,
                       .max_running = options_.max_running,
                       .max_batch_tokens = options_.max_batch_tokens,
                       .max_context = std::min(longest, options_.max_context)},
                      std::move(queue));
  max_pages_ = scheduler.max_pages();
  std::vector<GenerateResult> results(requests.size());
  const uint64_t key = sample_key(rollout_seed, step);
  const int64_t slots = options_.max_running;
  auto* shared = static_cast<Drawn*>(
      exchange_.ensure((cp_->size() + 1) * slots * static_cast<int64_t>(sizeof(Drawn))));
  std::vector<Drawn> all(cp_->size() * slots);
  while (!scheduler.done()) {
    const StepPlan plan = scheduler.next();
    copy_pages(plan);
    const std::vector<Work>& mine = plan.work[cp_->rank()];
    std::vector<Drawn> drawn;
    if (!mine.empty()) drawn = run(view, mine, requests, scheduler, key);
    if (cp_->size() > 1) {
      // Also the barrier after which other ranks may read this rank's new K/V rows.
      ctx_.ffn->copy(ctx_.stream, shared, drawn.data(), drawn.size() * sizeof(Drawn));
      cp_->all_gather(ctx_.stream, shared, shared + slots, slots * sizeof(Drawn));
      ctx_.ffn->copy(ctx_.stream, all.data(), shared + slots, all.size() * sizeof(Drawn));
      ctx_.ffn->synchronize(ctx_.stream);
    } else {
      std::copy(drawn.begin(), drawn.end(), all.begin());
    }
    std::vector<std::vector<int32_t>> tokens(cp_->size());
    std::vector<std::vector<bool>> stops(cp_->size());
    for (int home = 0; home < cp_->size(); ++home) {
      for (const Work& w : plan.work[home]) {
        if (!w.sample) continue;
        const Drawn& d = all[home * slots + static_cast<int64_t>(tokens[home].size())];
        tokens[home].push_back(d.token);
        stops[home].push_back(std::find(options_.stop.begin(), options_.stop.end(), d.token) !=
                              options_.stop.end());
        results[w.request].logp.push_back(d.logp);
        if (on_token) on_token(w.request, d.token);
      }
    }
    scheduler.advance(plan, tokens, stops);
  }
  scheduler.check();
  for (size_t i = 0; i < requests.size(); ++i) {
    results[i].tokens = scheduler.tokens(static_cast<int32_t>(i));
    results[i].truncated = scheduler.truncated(static_cast<int32_t>(i));
  }
  return results;
}

}  // namespace rlk
