#include "rlk/rollout/engine.h"

#include <algorithm>
#include <set>

#include "forward_pass.h"
#include "rlk/base/error.h"
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
      exchange_(*ctx.ffn) {
  RLK_CHECK(options_.look_ahead > 0, options_.look_ahead);
  if (!ctx_.stream && ctx_.ffn->stream_create)
    ctx_.stream = own_stream_ = ctx_.ffn->stream_create();  // the null stream cannot be captured
  ctx_.weights_ready = true;                                // nothing writes them during generate()
  if (ctx_.trace) options_.look_ahead = 1;                  // a trace is told each step's rows
  for (int64_t l = 0; l < ctx.config.L; ++l)
    for (auto* half : {&k_, &v_})
      half->push_back(static_cast<bf16*>(
          world.arena_alloc(options.pages_per_rank * page_elements_ * sizeof(bf16))));
  memory_ = std::make_unique<PassMemory>(ctx_, range_, cache(0, nullptr));
  reserve_memory();
  any_ = make_pass();
}

RolloutEngine::~RolloutEngine() {
  if (own_stream_) ctx_.ffn->stream_destroy(own_stream_);
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

std::unique_ptr<ForwardPass> RolloutEngine::make_pass() {
  return std::make_unique<ForwardPass>(
      ctx_, range_, [this](int layer, const int32_t* table) { return cache(layer, table); },
      *memory_, options_.stop);
}

int64_t RolloutEngine::most_rows() const {
  return (options_.max_running + cp_->size() - 1) / cp_->size();
}

// Of the largest prefill and the largest decode step, so that it never moves under a graph.
void RolloutEngine::reserve_memory() {
  PassShape shape{.T = std::max(options_.max_batch_tokens, most_rows()),
                  .R = most_rows(),
                  .n_segments = static_cast<int32_t>(most_rows()),
                  .max_len = static_cast<int32_t>(options_.max_batch_tokens),
                  .max_context = static_cast<int32_t>(options_.max_context),
                  .limited = true};
  memory_->at(shape);
  shape.T = most_rows();
  shape.max_len = 1;
  memory_->at(shape);
}

// Powers of two up to what one home runs, and that itself.
std::vector<int64_t> RolloutEngine::graph_sizes() const {
  std::vector<int64_t> sizes;
  if (!uses_graphs()) return sizes;
  for (int64_t n = 1; n < most_rows(); n *= 2) sizes.push_back(n);
  sizes.push_back(most_rows());
  return sizes;
}

std::vector<int64_t> RolloutEngine::captured_sizes() const {
  std::set<int64_t> sizes;
  for (const auto& [key, pass] : graphs_) sizes.insert(key.second);
  return {sizes.begin(), sizes.end()};
}

// Tracing reads every op's output, which a graph does not stop for.
bool RolloutEngine::uses_graphs() const {
  return options_.graphs && ctx_.ffn->capture_begin && !ctx_.trace;
}

// The longest context that the requests can reach, rounded up so that few shapes occur: attention
// reserves room for its splits, and chooses how it shares out the device, by it.
RolloutEngine::GraphShape RolloutEngine::graph_shape(
    const std::vector<GenerateRequest>& requests) const {
  int64_t longest = 1;
  GraphShape shape{};
  for (const GenerateRequest& r : requests) {
    longest = std::max(longest, static_cast<int64_t>(r.prompt.size()) + r.max_new);
    shape.limited |= r.sampling.temperature > 0 && (r.sampling.top_p < 1 || r.sampling.top_k > 0);
  }
  constexpr int64_t kShortest = 1024;
  int64_t bound = kShortest;
  while (bound < longest) bound *= 2;
  shape.max_context = static_cast<int32_t>(std::min(bound, options_.max_context));
  return shape;
}

void RolloutEngine::capture_graphs(const WeightsView& view, const GraphShape& shape,
                                   const std::vector<int32_t>& page_table) {
  for (int64_t size : graph_sizes()) {
    auto& pass = graphs_[{shape, size}];
    if (pass) continue;
    StepRows rows;
    rows.pad(size);
    rows.limited = shape.limited;
    rows.max_len = 1;
    rows.max_context = shape.max_context;
    pass = make_pass();
    pass->capture(view, rows, page_table, options_.look_ahead);
  }
}

std::vector<Drawn> RolloutEngine::run(const WeightsView& view, StepRows rows,
                                      const GraphShape& shape,
                                      const std::vector<int32_t>& page_table, int32_t steps) {
  const auto graph = rows.decode ? graphs_.lower_bound({shape, rows.T()}) : graphs_.end();
  if (graph == graphs_.end() || graph->first.first != shape) {
    if (rows.decode) eager_decodes_ += static_cast<uint64_t>(steps);
    rows.max_context = std::min(rows.max_context + steps - 1, shape.max_context);
    return any_->run(view, rows, page_table, steps);
  }
  const int64_t n = rows.R();
  rows.pad(graph->first.second);
  rows.max_context = shape.max_context;
  rows.limited = shape.limited;
  replays_[rows.T()] += static_cast<uint64_t>(steps);
  std::vector<Drawn> drawn = graph->second->run(view, rows, page_table, steps);
  drawn.resize(n * steps);
  return drawn;
}

// Every CP rank's `each` entries, in order. Also the barrier after which other ranks may read this
// rank's new K/V rows: a plan's own steps need none, since only a sequence's home reads what it
// wrote since the plan was made.
std::vector<Drawn> RolloutEngine::exchange(const std::vector<Drawn>& mine, int64_t each) {
  if (cp_->size() == 1) return mine;
  const Ops& ops = *ctx_.ffn;
  std::vector<Drawn> all(cp_->size() * each);
  auto* shared = static_cast<Drawn*>(
      exchange_.ensure((cp_->size() + 1) * each * static_cast<int64_t>(sizeof(Drawn))));
  ops.copy(ctx_.stream, shared, mine.data(), mine.size() * sizeof(Drawn));
  cp_->all_gather(ctx_.stream, shared, shared + each, each * sizeof(Drawn));
  ops.copy(ctx_.stream, all.data(), shared + each, all.size() * sizeof(Drawn));
  ops.synchronize(ctx_.stream);
  return all;
}

std::vector<std::vector<Outcome>> RolloutEngine::outcomes(const StepPlan& plan,
                                                          const std::vector<Drawn>& mine,
                                                          std::vector<GenerateResult>& results,
                                                          const OnToken& on_token) {
  int64_t most = 0;
  for (const auto& works : plan.work)
    most = std::max(
        most, std::count_if(works.begin(), works.end(), [](const Work& w) { return w.draws > 0; }));
  const int64_t each = most * plan.steps;
  const std::vector<Drawn> all = exchange(mine, each);
  std::vector<std::vector<Outcome>> by_home(cp_->size());
  for (int home = 0; home < cp_->size(); ++home) {
    const Drawn* row = all.data() + home * each;
    for (const Work& w : plan.work[home]) {
      if (w.draws == 0) continue;
      Outcome o{};
      for (int32_t i = 0; i < plan.steps && row[i].token >= 0; ++i) {
        o.tokens.push_back(row[i].token);
        results[w.request].logp.push_back(row[i].logp);
        if (on_token) on_token(w.request, row[i].token);
      }
      o.stop = !o.tokens.empty() && std::find(options_.stop.begin(), options_.stop.end(),
                                              o.tokens.back()) != options_.stop.end();
      by_home[home].push_back(std::move(o));
      row += plan.steps;
    }
  }
  return by_home;
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
                       .max_context = options_.max_context,
                       .look_ahead = options_.look_ahead},
                      std::move(queue));
  std::vector<GenerateResult> results(requests.size());
  const uint64_t key = sample_key(rollout_seed, step);
  const GraphShape shape = graph_shape(requests);
  if (uses_graphs()) capture_graphs(view, shape, scheduler.page_table());
  while (!scheduler.done()) {
    const StepPlan plan = scheduler.next();
    copy_pages(plan);
    const std::vector<Work>& mine = plan.work[cp_->rank()];
    std::vector<Drawn> drawn;
    if (!mine.empty())
      drawn = run(view, step_rows(mine, requests, scheduler, key), shape, scheduler.page_table(),
                  plan.steps);
    scheduler.advance(plan, outcomes(plan, drawn, results, on_token));
  }
  scheduler.check();
  for (size_t i = 0; i < requests.size(); ++i) {
    results[i].tokens = scheduler.tokens(static_cast<int32_t>(i));
    results[i].truncated = scheduler.truncated(static_cast<int32_t>(i));
  }
  return results;
}

}  // namespace rlk
