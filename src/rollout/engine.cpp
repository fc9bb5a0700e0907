#include "rlk/rollout/engine.h"

#include <algorithm>

#include "forward_pass.h"
#include "step_rows.h"

namespace rlk {
namespace {

KvCache page_layout(const ModelConfig& m, int slices, int32_t page_size) {
  KvCache cache{};
  kv_page_layout(cache, slices * static_cast<int>(m.hkv()), static_cast<int>(m.Dh), page_size);
  return cache;
}

}  // namespace

int64_t RolloutEngine::kv_bytes(const ModelConfig& m, const RolloutOptions& options, int rank) {
  const int slices = options.topology.rollout_slices(rank).count;
  return 2 * m.L * options.pages_per_rank * page_layout(m, slices, options.page_size).page_stride *
         static_cast<int64_t>(sizeof(bf16));
}

RolloutEngine::RolloutEngine(const Context& ctx, World& world, const RolloutOptions& options)
    : ctx_(ctx),
      options_(options),
      range_(options.topology.rollout_slices(world.rank())),
      cp_(world.group(options.topology.rollout_cp_group(world.rank()), "rollout cp")),
      page_elements_(page_layout(ctx.config, range_.count, options.page_size).page_stride),
      max_pages_((options.max_context + options.page_size - 1) / options.page_size),
      any_(std::make_unique<ForwardPass>(
          ctx, range_, [this](int layer, const int32_t* table) { return cache(layer, table); })),
      exchange_(*ctx.ffn) {
  for (int64_t l = 0; l < ctx.config.L; ++l)
    for (auto* half : {&k_, &v_})
      half->push_back(static_cast<bf16*>(
          world.arena_alloc(options.pages_per_rank * page_elements_ * sizeof(bf16))));
}

RolloutEngine::~RolloutEngine() = default;

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

// Powers of two up to what one home runs, and that itself.
std::vector<int64_t> RolloutEngine::graph_sizes() const {
  std::vector<int64_t> sizes;
  if (!uses_graphs()) return sizes;
  const int64_t most = (options_.max_running + cp_->size() - 1) / cp_->size();
  for (int64_t n = 1; n < most; n *= 2) sizes.push_back(n);
  sizes.push_back(most);
  return sizes;
}

std::vector<int64_t> RolloutEngine::captured_sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& [key, pass] : graphs_)
    if (sizes.empty() || sizes.back() != key.first) sizes.push_back(key.first);
  return sizes;
}

// Tracing reads every op's output, which a graph does not stop for.
bool RolloutEngine::uses_graphs() const {
  return ctx_.ffn->capture_begin && !ctx_.trace;
}

void RolloutEngine::capture_graphs(const WeightsView& view, bool limited,
                                   const std::vector<int32_t>& page_table) {
  for (int64_t size : graph_sizes()) {
    auto& pass = graphs_[{size, limited}];
    if (pass) continue;
    StepRows rows;
    rows.pad(size);
    rows.limited = limited;
    rows.max_len = 1;
    rows.max_context = static_cast<int32_t>(options_.max_context);
    pass = std::make_unique<ForwardPass>(
        ctx_, range_, [this](int layer, const int32_t* table) { return cache(layer, table); });
    pass->capture(view, rows, page_table);
  }
}

std::vector<Drawn> RolloutEngine::run(const WeightsView& view, StepRows rows,
                                      const std::vector<int32_t>& page_table) {
  const int64_t n = rows.R();
  const auto graph = graphs_.lower_bound({rows.T(), rows.limited});
  auto fits = graph;
  while (fits != graphs_.end() && fits->first.second != rows.limited) ++fits;
  if (!rows.decode || fits == graphs_.end()) {
    eager_decodes_ += rows.decode;
    return any_->run(view, rows, page_table);
  }
  const int64_t size = fits->first.first;
  rows.pad(size);
  rows.max_context = static_cast<int32_t>(options_.max_context);
  ++replays_[size];
  std::vector<Drawn> drawn = fits->second->replay(rows, page_table);
  drawn.resize(n);
  return drawn;
}

std::vector<GenerateResult> RolloutEngine::generate(const WeightsView& view,
                                                    const std::vector<GenerateRequest>& requests,
                                                    uint64_t rollout_seed, uint64_t step,
                                                    const OnToken& on_token) {
  std::vector<Request> queue;
  for (const GenerateRequest& r : requests) queue.push_back({r.prompt_index, r.prompt, r.max_new});
  Scheduler scheduler({.cp = cp_->size(),
                       .page_size = options_.page_size,
                       .pages_per_shard = options_.pages_per_rank,
                       .max_running = options_.max_running,
                       .max_batch_tokens = options_.max_batch_tokens,
                       .max_context = options_.max_context},
                      std::move(queue));
  std::vector<GenerateResult> results(requests.size());
  const uint64_t key = sample_key(rollout_seed, step);
  const int64_t slots = options_.max_running;
  auto* shared = static_cast<Drawn*>(
      exchange_.ensure((cp_->size() + 1) * slots * static_cast<int64_t>(sizeof(Drawn))));
  std::vector<Drawn> all(cp_->size() * slots);
  if (uses_graphs()) {
    bool limited = false;
    for (const GenerateRequest& r : requests)
      limited |= r.sampling.temperature > 0 && (r.sampling.top_p < 1 || r.sampling.top_k > 0);
    capture_graphs(view, limited, scheduler.page_table());
  }
  while (!scheduler.done()) {
    const StepPlan plan = scheduler.next();
    copy_pages(plan);
    const std::vector<Work>& mine = plan.work[cp_->rank()];
    std::vector<Drawn> drawn;
    if (!mine.empty())
      drawn = run(view, step_rows(mine, requests, scheduler, key), scheduler.page_table());
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
