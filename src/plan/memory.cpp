// The memory of one rank, in bytes, item by item, as model, rollout and train allocate it (their
// *_bytes functions are exact; these are upper bounds that need no tokenized prompt). Every item is
// allocated once and stays.

#include <algorithm>

#include "rlk/base/text.h"
#include "rlk/plan/make_plan.h"

namespace rlk {
namespace {

constexpr uint64_t kBf16 = 2, kF32 = 4;
constexpr int64_t kMaxRunning = 256;  // sequences an engine decodes at once
constexpr int64_t kMicroBatchCpu = 1024, kMicroBatchGpu = 8192;  // tokens a rank, at most
constexpr int64_t kMicroBatchStep = 64;                          // a leaf's padding
constexpr double kGpuShare = 0.92;  // the rest is the driver's, NCCL's and the allocator's
constexpr uint64_t kArenaAlignment = 256;

struct Sizes {
  explicit Sizes(const Plan& plan)
      : m(plan.model),
        t(plan.options.topology),
        train(8 / t.tp),
        rollout(8 / t.rollout_tp),
        held(std::max(train, rollout)) {}

  const ModelConfig& m;
  const Topology& t;
  int64_t train, rollout, held;  // virtual slices of a rank

  // Elements of one layer, and of everything outside the layers, in n virtual slices.
  int64_t layer(int64_t n) const {
    const int64_t slice = m.qkv_slice() * m.D + m.attn_slice() * m.D + 3 * m.ffn_slice() * m.D;
    return n * slice + 2 * m.D + 2 * m.Dh;
  }
  int64_t outer(int64_t n) const { return n * m.vocab_slice() * m.D * (m.tied ? 1 : 2) + m.D; }
  int64_t parameters(int64_t n) const { return m.L * layer(n) + outer(n); }

  // One layer's activations over T rows of n slices (LayerActs).
  uint64_t activations(int64_t T, int64_t n, bool training) const {
    const int64_t heads = n * m.hq() * m.Dh, kv = n * m.hkv() * m.Dh;
    const int64_t bf16 =
        4 * m.D + n * m.qkv_slice() + 2 * heads + 3 * n * m.ffn_slice() + (training ? 2 * kv : 0);
    const int64_t f32 = 2 + (training ? n * m.hq() : 0);
    return T * (bf16 * kBf16 + f32 * kF32);
  }
  // A row-parallel partial sum and its rounded sum.
  uint64_t partials(int64_t T) const { return T * m.D * (kF32 + kBf16); }
  // K and V of `layers` layers.
  uint64_t page(int32_t page_size, int64_t n, int64_t layers) const {
    return static_cast<uint64_t>(layers * 2 * page_size * n * m.hkv() * m.Dh) * kBf16;
  }
  // R rows of logits in n slices, the whole rows that limited supports gather, and what leads to
  // them.
  uint64_t logits(int64_t R, int64_t n) const {
    return R * (4 * m.D + n * m.vocab_slice() + 2 * m.padded_vocab()) * kBf16;
  }
  int64_t pages_of_a_sequence(int32_t page_size) const {
    return (m.max_position + page_size - 1) / page_size;
  }
};

// Tokens of the largest super-batch: it is closed by the sequence that fills it.
int64_t super_batch(const Plan& plan) {
  const Options& o = plan.options;
  const int64_t step = o.rollout_batch_size * o.samples_per_prompt * plan.model.max_position;
  return std::min(plan.super_batch_tokens + plan.model.max_position, step);
}

void permanent_items(Plan& plan, const Sizes& s) {
  auto& memory = plan.memory;
  memory["weights.bf16"] = s.parameters(s.held) * kBf16;
  if (plan.options.kl_coef > 0) memory["weights.reference"] = s.parameters(s.train) * kBf16;
  memory["weights.rope"] = s.m.max_position * s.m.Dh * kF32;
  // Gradient, fp32 master and both moments, dealt over the CP group.
  memory["optimizer.state"] = (s.parameters(s.train) + s.t.cp - 1) / s.t.cp * 4 * kF32;
  // Two layers, so that one is reduced while the next is computed, and what lies outside the
  // layers.
  memory["optimizer.gradients"] = (2 * s.layer(s.train) + s.outer(s.train)) * kF32;
}

void micro_batch_items(Plan& plan, const Sizes& s) {
  const int64_t rows = std::max(plan.max_running, plan.options.max_tokens_per_gpu);
  plan.memory["rollout.activations"] = s.activations(rows, s.rollout, false) + s.partials(rows);
  plan.memory["rollout.logits"] = s.logits(plan.max_running, s.rollout);
  plan.memory["train.logits"] = s.logits(plan.options.max_tokens_per_gpu, s.train);
}

void train_items(Plan& plan, const Sizes& s) {
  const int64_t S = super_batch(plan), T = (S + s.t.cp - 1) / s.t.cp;
  const bool recompute = plan.options.backend == Backend::cuda;
  auto& memory = plan.memory;
  memory["train.activations"] =
      (recompute ? 1 : s.m.L) * s.activations(T, s.train, true) + s.partials(T);
  if (recompute) memory["train.residuals"] = s.m.L * T * s.m.D * kBf16;
  memory["train.kv_pages"] = (S / plan.page_size + 1) * s.page(plan.page_size, s.train, 1);
  // Gradients of one layer's activations, and q, k, v, d_o of whole sequences where CP cuts them.
  memory["train.backward"] = s.activations(T, s.train, true) + 2 * T * s.m.D * kF32 +
                             S * (3 * s.m.hq() + 2 * s.m.hkv()) * s.train * s.m.Dh * kBf16;
}

uint64_t total(const Plan& plan) {
  uint64_t sum = 0;
  for (const auto& [item, bytes] : plan.memory) sum += bytes;
  return sum;
}

// The most micro-batch tokens, halving down to a leaf's padding, that fit into the budget (0: no
// limit).
void choose_micro_batch(Plan& plan, const Sizes& s, uint64_t budget) {
  const bool gpu = plan.options.backend == Backend::cuda;
  int64_t& tokens = plan.options.max_tokens_per_gpu;
  for (tokens = gpu ? kMicroBatchGpu : kMicroBatchCpu;; tokens /= 2) {
    micro_batch_items(plan, s);
    if (budget == 0 || total(plan) <= budget || tokens <= kMicroBatchStep) return;
  }
}

// Pages for every sequence at its longest, or what the budget leaves.
void choose_pages(Plan& plan, const Sizes& s, uint64_t budget) {
  const int64_t cp = s.t.rollout_cp, longest = s.pages_of_a_sequence(plan.page_size);
  const uint64_t page = s.page(plan.page_size, s.rollout, s.m.L);
  int64_t pages = plan.max_running * ((longest + cp - 1) / cp);
  if (budget > 0) {
    const uint64_t used = total(plan);
    pages = std::min(pages, static_cast<int64_t>((budget > used ? budget - used : 0) / page));
  }
  plan.kv_pages = pages;
  plan.memory["rollout.kv_pages"] = pages * page;
}

// What other ranks read lies in the arena: weights, gradients and pages, each tensor of its own
// alignment.
void size_arena(Plan& plan) {
  uint64_t bytes = 0;
  for (const char* item :
       {"weights.bf16", "weights.reference", "optimizer.gradients", "rollout.kv_pages"})
    if (const auto it = plan.memory.find(item); it != plan.memory.end()) bytes += it->second;
  constexpr uint64_t kStoragesOutside = 16, kStoragesALayer = 8;
  const uint64_t storages = kStoragesOutside + plan.model.L * kStoragesALayer;
  bytes += 4 * storages * kArenaAlignment;  // weights, reference, gradients, pages
  plan.arena_bytes = (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

}  // namespace

void plan_memory(Plan& plan, uint64_t gpu_memory_bytes, std::vector<Diagnostic>& defects) {
  const Sizes s(plan);
  Options& o = plan.options;
  const double share = o.gpu_memory_utilization > 0 ? o.gpu_memory_utilization : kGpuShare;
  const auto budget =
      static_cast<uint64_t>(static_cast<double>(gpu_memory_bytes / plan.ranks_per_gpu) * share);
  const int64_t samples = o.rollout_batch_size * o.samples_per_prompt;

  plan.max_running = std::min((samples + s.t.engines() - 1) / s.t.engines(), kMaxRunning);
  permanent_items(plan, s);
  train_items(plan, s);
  if (o.max_tokens_per_gpu > 0)
    micro_batch_items(plan, s);
  else
    choose_micro_batch(plan, s, budget);
  choose_pages(plan, s, budget);
  size_arena(plan);
  if (budget == 0) return;

  o.gpu_memory_utilization = share;
  if (total(plan) > budget ||
      plan.kv_pages * s.t.rollout_cp < s.pages_of_a_sequence(plan.page_size))
    defects.push_back(
        {"memory plan",
         "a rank needs " + format_bytes(total(plan)) +
             " and KV pages for one sequence, its budget is " + format_bytes(budget),
         "more ranks a model (--tp, --rollout-tp), or a smaller --max-tokens-per-gpu"});
}

}  // namespace rlk
