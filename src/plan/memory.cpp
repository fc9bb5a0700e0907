// The memory of one rank, in bytes, item by item: what is allocated once, and what each phase adds.
// Phases take turns, so a rank needs what is permanent plus the largest phase.

#include <algorithm>

#include "rlk/base/text.h"
#include "rlk/plan/make_plan.h"

namespace rlk {
namespace {

constexpr uint64_t kBf16 = 2, kF32 = 4;
constexpr int64_t kMaxRunning = 256;      // sequences an engine decodes at once
constexpr int64_t kPrefillTokens = 2048;  // rows of one rollout forward
constexpr int64_t kHeadRows = 1024;       // rows whose logits exist at once in training
constexpr int64_t kMicroBatchCpu = 1024, kMicroBatchGpu = 8192;  // tokens a rank, at most
constexpr int64_t kMicroBatchStep = 64;                          // a leaf's padding
constexpr double kGpuShare = 0.92;  // the rest is the driver's, NCCL's and the allocator's
constexpr uint64_t kArenaAlignment = 256;

struct Sizes {
  explicit Sizes(const Plan& plan)
      : m(plan.model),
        t(plan.options.topology),
        train_slices(8 / t.tp),
        rollout_slices(8 / t.rollout_tp),
        weight_slices(std::max(train_slices, rollout_slices)) {}

  const ModelConfig& m;
  const Topology& t;
  int64_t train_slices, rollout_slices, weight_slices;

  // Elements of one layer's matrices in n virtual slices, and of what every rank holds whole.
  int64_t layer_slices(int64_t n) const {
    return n * (m.qkv_slice() * m.D + m.attn_slice() * m.D + 3 * m.ffn_slice() * m.D);
  }
  int64_t layer_whole() const { return 2 * m.D + 2 * m.Dh; }
  int64_t outer_slices(int64_t n) const { return n * m.vocab_slice() * m.D * (m.tied ? 1 : 2); }
  int64_t parameters(int64_t n) const {
    return m.L * (layer_slices(n) + layer_whole()) + outer_slices(n) + m.D;
  }

  // One layer's activations over T rows of n slices, as the forward pass lays them out.
  uint64_t layer_activations(int64_t T, int64_t n, bool training) const {
    const int64_t heads = n * m.hq() * m.Dh, kv = n * m.hkv() * m.Dh;
    const int64_t bf16 =
        4 * m.D + n * m.qkv_slice() + 2 * heads + 3 * n * m.ffn_slice() + (training ? 2 * kv : 0);
    const int64_t f32 = 2 + (training ? n * m.hq() : 0);
    return T * (bf16 * kBf16 + f32 * kF32);
  }
  // The row-parallel partial and its rounded sum.
  uint64_t partials(int64_t T) const { return T * m.D * (kF32 + kBf16); }
  uint64_t page(int32_t page_size) const {  // K and V of all layers
    return static_cast<uint64_t>(m.L * 2 * page_size * rollout_slices * m.hkv() * m.Dh) * kBf16;
  }
  // Logits of R rows in n slices, gathered rows for supports, and statistics.
  uint64_t head(int64_t R, int64_t n) const {
    return R * (4 * m.D + n * m.vocab_slice() + 2 * m.padded_vocab()) * kBf16;
  }
};

int64_t engine_samples(const Plan& plan) {
  const int64_t samples = plan.options.rollout_batch_size * plan.options.samples_per_prompt;
  const int64_t engines = plan.options.topology.engines();
  return (samples + engines - 1) / engines;
}

// Rows of the largest super-batch that a CP rank can hold.
int64_t train_rows(const Plan& plan) {
  const Options& o = plan.options;
  const int64_t step = o.rollout_batch_size * o.samples_per_prompt * plan.model.max_position;
  const int64_t tokens = std::min(plan.super_batch_tokens + plan.model.max_position, step);
  return (tokens + o.topology.cp - 1) / o.topology.cp;
}

void permanent_items(Plan& plan, const Sizes& s) {
  auto& memory = plan.memory;
  memory["permanent.weights"] = s.parameters(s.weight_slices) * kBf16;
  // fp32 master and both moments, dealt over the CP group.
  const int64_t shard = (s.parameters(s.train_slices) + s.t.cp - 1) / s.t.cp;
  memory["permanent.optimizer"] = shard * 3 * kF32;
  if (plan.options.kl_coef > 0)
    memory["permanent.reference"] = s.parameters(s.train_slices) * kBf16;
  memory["permanent.rope"] = s.m.max_position * s.m.Dh * kF32;
}

void rollout_items(Plan& plan, const Sizes& s) {
  const int64_t rows = std::max(plan.max_running, kPrefillTokens);
  plan.memory["rollout.activations"] =
      s.layer_activations(rows, s.rollout_slices, false) + s.partials(rows);
  plan.memory["rollout.logits"] = s.head(plan.max_running, s.rollout_slices);
}

void train_items(Plan& plan, const Sizes& s) {
  const int64_t T = train_rows(plan), n = s.train_slices;
  const int64_t micro = plan.options.max_tokens_per_gpu;
  auto& memory = plan.memory;
  memory["train.residuals"] =
      plan.model.L * T * plan.model.D * kBf16;  // what recompute starts from
  memory["train.activations"] = s.layer_activations(micro, n, true) + s.partials(micro);
  memory["train.gradients"] = (s.layer_slices(n) + s.layer_whole() + s.outer_slices(n)) * kF32;
  memory["train.gradient_shard"] = (s.parameters(n) + s.t.cp - 1) / s.t.cp * kF32;
  memory["train.backward"] = s.layer_activations(micro, n, true) + 2 * micro * plan.model.D * kF32;
  memory["train.logits"] = s.head(std::min(kHeadRows, T), n);
}

uint64_t phase_bytes(const Plan& plan, const std::string& phase) {
  uint64_t sum = 0;
  for (const auto& [item, bytes] : plan.memory)
    if (item.starts_with(phase + ".")) sum += bytes;
  return sum;
}

uint64_t largest_phase(const Plan& plan) {
  return std::max(phase_bytes(plan, "rollout"), phase_bytes(plan, "train"));
}

// The most micro-batch tokens, in steps of a leaf's padding, that keep training inside the budget
// (0: there is none).
void choose_micro_batch(Plan& plan, const Sizes& s, uint64_t budget) {
  const bool gpu = plan.options.backend == Backend::cuda;
  int64_t tokens = std::min((gpu ? kMicroBatchGpu : kMicroBatchCpu), train_rows(plan));
  tokens = std::max(kMicroBatchStep, tokens / kMicroBatchStep * kMicroBatchStep);
  for (;; tokens = std::max(kMicroBatchStep, tokens / 2 / kMicroBatchStep * kMicroBatchStep)) {
    plan.options.max_tokens_per_gpu = tokens;
    train_items(plan, s);
    const bool fits = phase_bytes(plan, "permanent") + phase_bytes(plan, "train") <= budget;
    if (budget == 0 || fits || tokens == kMicroBatchStep) return;
  }
}

// Pages for every sequence at its longest, or what the budget leaves.
void choose_pages(Plan& plan, const Sizes& s, uint64_t budget) {
  const int64_t per_sequence = (plan.model.max_position + plan.page_size - 1) / plan.page_size;
  const int64_t cp = plan.options.topology.rollout_cp;
  int64_t pages = plan.max_running * ((per_sequence + cp - 1) / cp);
  if (budget > 0) {
    const uint64_t used = phase_bytes(plan, "permanent") + phase_bytes(plan, "rollout");
    const uint64_t left = budget > used ? budget - used : 0;
    pages = std::min(pages, static_cast<int64_t>(left / s.page(plan.page_size)));
  }
  plan.kv_pages = pages;
  plan.memory["rollout.kv_pages"] = pages * s.page(plan.page_size);
}

}  // namespace

void plan_memory(Plan& plan, uint64_t gpu_memory_bytes, std::vector<Diagnostic>& defects) {
  const Sizes s(plan);
  Options& o = plan.options;
  const double share = o.gpu_memory_utilization > 0 ? o.gpu_memory_utilization : kGpuShare;
  const auto budget =
      static_cast<uint64_t>(static_cast<double>(gpu_memory_bytes / plan.ranks_per_gpu) * share);

  plan.max_running = std::min(engine_samples(plan), kMaxRunning);
  permanent_items(plan, s);
  rollout_items(plan, s);
  if (o.max_tokens_per_gpu == 0)
    choose_micro_batch(plan, s, budget);
  else
    train_items(plan, s);
  choose_pages(plan, s, budget);

  const uint64_t total = phase_bytes(plan, "permanent") + largest_phase(plan);
  // Every item is an allocation of its own and is rounded up to the arena's alignment.
  plan.arena_bytes =
      (total + plan.memory.size() * kArenaAlignment) / kArenaAlignment * kArenaAlignment;
  if (gpu_memory_bytes == 0) return;
  o.gpu_memory_utilization = share;
  const int64_t one = (plan.model.max_position + plan.page_size - 1) / plan.page_size;
  if (total > budget || plan.kv_pages * o.topology.rollout_cp < one)
    defects.push_back(
        {"memory plan",
         "a rank needs " + format_bytes(total) + " and KV pages for one sequence, its budget is " +
             format_bytes(budget),
         "more ranks a model (--tp, --rollout-tp), or a smaller --max-tokens-per-gpu"});
}

}  // namespace rlk
