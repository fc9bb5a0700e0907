// The memory of one rank, in bytes, item by item, as model, rollout and train allocate it (their
// *_bytes functions are exact; these are upper bounds that need no tokenized prompt). Every item is
// allocated once and stays. What may vary and changes no bit is solved for here, in this order:
// rows of a micro-batch, KV pages, layers that keep their activations.

#include <algorithm>
#include <bit>

#include "rlk/base/text.h"
#include "rlk/plan/make_plan.h"

namespace rlk {
namespace {

constexpr int64_t kBf16 = 2, kF32 = 4, kStats = 16, kCandidate = 8;
constexpr int64_t kMaxRunning = 256;  // sequences an engine decodes at once
constexpr int64_t kMicroBatchCpu = 1024, kMicroBatchGpu = 8192;  // rows, at most
constexpr int64_t kLeafPadding = 64;  // of the token lists of weight gradients, and least rows
constexpr int64_t kSplit = 1024;      // keys of an attention split
constexpr int64_t kUnit = 262144;     // elements of the optimizer's pieces, dealt over the CP group
constexpr int64_t kPrompt = 1024;     // tokens that a prompt of files is expected to have at most
constexpr double kGpuShare = 0.96;    // the rest is lost between allocations
constexpr int64_t kRuntime = int64_t{1} << 30;  // CUDA context, kernels, graphs, staging
constexpr int64_t kArenaAlignment = 256;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

class Solver {
 public:
  Solver(Plan& plan, int64_t budget)
      : plan_(plan),
        m_(plan.model),
        t_(plan.options.topology),
        budget_(budget),
        train_(8 / t_.tp),
        rollout_(8 / t_.rollout_tp) {
    const Options& o = plan.options;
    samples_ = o.rollout_batch_size * o.samples_per_prompt;
    limited_ = o.temperature > 0 && (o.top_p < 1 || o.top_k > 0);
    const auto& s = plan.synthetic;
    longest_ = s ? s->prompt_tokens + o.max_response_len : m_.max_position;
    likely_ = std::min(longest_, kPrompt + o.max_response_len);
    // A super-batch is closed by the sequence that would pass the limit.
    S_ = std::min(samples_ * longest_, std::max(plan.super_batch_tokens, longest_));
    // Chunks are rounded, and each leaf is padded; a super-batch has at least one input a sample.
    const int64_t count = std::min(samples_, S_);
    leaf_ = S_ / 8 + 2 * count + kLeafPadding;
    T_ = t_.cp == 1 ? S_ + 8 * kLeafPadding : 8 / t_.cp * leaf_;
    leaf_ = std::min(leaf_, T_);
  }

  // Whether it fits. The plan is filled either way, with the least where it does not.
  bool solve() {
    plan_.max_running = std::min(ceil_div(samples_, t_.engines()), kMaxRunning);
    permanent();
    choose_micro_batch();
    choose_pages();
    choose_activations();
    size_arena();
    return budget_ == 0 || total() <= budget_;
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& [item, bytes] : plan_.memory) sum += static_cast<int64_t>(bytes);
    return sum;
  }

 private:
  void set(const char* item, int64_t bytes) { plan_.memory[item] = static_cast<uint64_t>(bytes); }

  // Elements of one layer, and of everything outside the layers, in n virtual slices.
  int64_t layer(int64_t n) const {
    return n * (m_.qkv_slice() + m_.attn_slice() + 3 * m_.ffn_slice()) * m_.D + 2 * m_.D +
           2 * m_.Dh;
  }
  int64_t outer(int64_t n) const { return n * vocabulary() * (m_.tied ? 1 : 2) + m_.D; }
  int64_t vocabulary() const { return m_.vocab_slice() * m_.D; }
  int64_t parameters(int64_t n) const { return m_.L * layer(n) + outer(n); }

  // Bytes of a row: q and k with v of n slices, a layer's activations (LayerActs), a row-parallel
  // partial sum and its rounded sum, attention's statistics.
  int64_t q(int64_t n) const { return n * m_.attn_slice() * kBf16; }
  int64_t kv(int64_t n) const { return 2 * n * m_.hkv() * m_.Dh * kBf16; }
  int64_t stats(int64_t n) const { return n * m_.hq() * kF32; }
  int64_t activations(int64_t n, bool training) const {
    return (4 * m_.D + n * m_.qkv_slice() + 3 * n * m_.ffn_slice()) * kBf16 + 2 * q(n) + 2 * kF32 +
           (training ? kv(n) + stats(n) : 0);
  }
  int64_t partials() const { return m_.D * (kF32 + kBf16); }
  // A row of the head (HeadActs): what leads to the logits, they, and where supports are limited
  // over several ranks the gathered rows as well.
  int64_t head(int64_t n, int tp, bool limited) const {
    const int64_t gathered = limited && tp > 1 ? 2 * m_.padded_vocab() * kBf16 : 0;
    return (4 * m_.D + n * m_.vocab_slice()) * kBf16 + gathered + (n + 8) * kStats +
           (tp + 1) * kCandidate + 4 * kF32;
  }
  int64_t page(int64_t n, int64_t layers) const { return layers * plan_.page_size * kv(n); }
  int64_t pages_of(int64_t tokens) const { return ceil_div(tokens, plan_.page_size); }

  void permanent() {
    set("weights.bf16", parameters(std::max(train_, rollout_)) * kBf16);
    if (plan_.options.kl_coef > 0) set("weights.reference", parameters(train_) * kBf16);
    if (native()) set("weights.native", whole_row_copies() * kBf16);
    set("weights.rope", m_.max_position * m_.Dh * kF32);
    // Gradient, fp32 master and both moments.
    set("optimizer.state", (ceil_div(parameters(train_), t_.cp) + kUnit) * 4 * kF32);
    // Two layers, so that one is reduced while the next is computed, and what lies outside them.
    set("optimizer.gradients", (2 * layer(train_) + outer(train_)) * kF32);
    if (budget_ > 0) set("device.runtime", kRuntime);

    const int64_t n = train_, workspace = T_ / kLeafPadding * m_.D * kF32;
    set("train.kv_pages", (pages_of(S_) + std::min(samples_, S_)) * page(n, 1));
    set("train.scratch", T_ * (partials() + q(n) + std::max(q(n), kv(n)) + stats(n)));
    if (t_.cp > 1) set("train.gathered", t_.cp * T_ * (q(n) + kv(n) + stats(n)));
    // Gradients of a layer's activations; q, k, v, d_o of whole sequences.
    const int64_t row = 2 * m_.D * kF32 + m_.D * kBf16 + n * m_.ffn_slice() * kBf16 +
                        n * m_.qkv_slice() * kBf16 + 2 * q(n) + kv(n) + stats(n);
    set("train.backward", T_ * row + S_ * (2 * q(n) + kv(n) + 2 * stats(n)) + workspace);
  }

  bool native() const {
    const Options& o = plan_.options;
    return o.backend == Backend::cuda && !(o.strict_attention && o.strict_ffn && o.strict_logp);
  }
  // A native GEMM wants row-parallel weights in whole rows (src/device/cuda/native.cpp): a copy for
  // each shard that is multiplied with.
  int64_t whole_row_copies() const {
    const Options& o = plan_.options;
    const int64_t slice =
        ((o.strict_attention ? 0 : m_.attn_slice()) + (o.strict_ffn ? 0 : m_.ffn_slice())) * m_.D;
    const auto cut = [](int64_t n) { return n > 1 ? n : 0; };
    const int64_t slices =
        cut(train_) * (o.kl_coef > 0 ? 2 : 1) + (rollout_ == train_ ? 0 : cut(rollout_));
    return m_.L * slices * slice;
  }

  void micro_batch() {
    const int64_t rows = plan_.options.max_tokens_per_gpu, R = plan_.max_running;
    set("rollout.activations", std::max(R, rows) * (activations(rollout_, false) + partials()));
    set("rollout.head", R * head(rollout_, t_.rollout_tp, true));
    // Rows that wait for their merge: R, native: what gives each of 132 machines up to four splits
    // of a context of one.
    const int64_t waiting =
        plan_.options.strict_attention ? R : std::max(R, ceil_div(4 * 132, rollout_ * m_.hkv()));
    set("rollout.attention",
        waiting * ceil_div(m_.max_position, kSplit) * rollout_ * m_.hq() * (m_.Dh + 2) * kF32);
    // An update takes the head's rows subtree by subtree, a leaf at least, and then joins the
    // subtrees' gradients.
    const int64_t leaves = 8 / t_.cp;
    int64_t together = leaves;
    while (together > 1 && together * leaf_ > rows) together /= 2;
    const int64_t chunk = std::max(together * leaf_, std::min(rows, T_));
    const int joins = std::countr_zero(static_cast<uint64_t>(leaves / together));
    set("train.head",
        chunk * head(train_, t_.tp, limited_) + joins * (train_ * vocabulary() + m_.D) * kF32);
  }

  void least_pages() {
    plan_.kv_pages = ceil_div(pages_of(longest_), t_.rollout_cp);
    set("rollout.kv_pages", plan_.kv_pages * page(rollout_, m_.L));
  }
  // One layer at a time, and what enters each.
  void least_activations() {
    set("train.activations", T_ * (activations(train_, true) + m_.L * m_.D * kBf16));
  }

  // The most rows, halving down to a leaf's padding, that leave room for the least of the rest.
  void choose_micro_batch() {
    least_pages();
    least_activations();
    int64_t& rows = plan_.options.max_tokens_per_gpu;
    if (rows > 0) return micro_batch();
    for (rows = budget_ > 0 ? kMicroBatchGpu : kMicroBatchCpu;; rows /= 2) {
      micro_batch();
      if (budget_ == 0 || total() <= budget_ || rows <= kLeafPadding) return;
    }
  }

  // Pages for every running sequence at its likely longest, or what the budget leaves.
  void choose_pages() {
    const int64_t each = page(rollout_, m_.L);
    int64_t more = plan_.max_running * ceil_div(pages_of(likely_), t_.rollout_cp) - plan_.kv_pages;
    if (budget_ > 0) more = std::min(more, (budget_ - total()) / each);
    plan_.kv_pages += std::max<int64_t>(0, more);
    set("rollout.kv_pages", plan_.kv_pages * each);
  }

  // All layers' activations, or what the budget leaves.
  void choose_activations() {
    const int64_t all = m_.L * T_ * activations(train_, true);
    const auto least = static_cast<int64_t>(plan_.memory.at("train.activations"));
    const int64_t left = budget_ > 0 ? std::max<int64_t>(0, budget_ - total()) : all;
    set("train.activations", std::min(least + left, std::max(all, least)));
  }

  // What other ranks read lies in the arena: weights, gradients and pages, each tensor of its own
  // alignment.
  void size_arena() {
    int64_t bytes = 0;
    for (const char* item :
         {"weights.bf16", "weights.reference", "optimizer.gradients", "rollout.kv_pages"})
      if (const auto it = plan_.memory.find(item); it != plan_.memory.end())
        bytes += static_cast<int64_t>(it->second);
    constexpr int64_t kStoragesOutside = 16, kStoragesALayer = 8;
    const int64_t storages = kStoragesOutside + m_.L * kStoragesALayer;
    bytes += 4 * storages * kArenaAlignment;  // weights, reference, gradients, pages
    plan_.arena_bytes = static_cast<uint64_t>(ceil_div(bytes, kArenaAlignment) * kArenaAlignment);
  }

  Plan& plan_;
  const ModelConfig& m_;
  const Topology& t_;
  int64_t budget_;
  int64_t train_, rollout_;  // virtual slices
  int64_t samples_, longest_, likely_;
  int64_t S_, T_, leaf_;  // inputs of the largest super-batch, a rank's rows of it, a leaf's
  bool limited_;
};

// Other options with which the same run would fit, at most three, the nearest ones first.
std::string remedies(const Plan& asked, int64_t budget, bool rows_given) {
  std::vector<std::string> found;
  const auto attempt = [&](const std::string& option, Plan plan) {
    if (!rows_given) plan.options.max_tokens_per_gpu = 0;
    plan.memory.clear();
    if (found.size() < 3 && Solver(plan, budget).solve()) found.push_back(option);
  };
  for (const bool kl : {true, false}) {
    if (!kl && asked.options.kl_coef == 0) break;
    const std::string no_kl = kl ? "" : " --kl-coef 0";
    Plan plan = asked;
    if (!kl) plan.options.kl_coef = 0;
    if (rows_given) {
      Plan fewer = plan;
      fewer.options.max_tokens_per_gpu = kLeafPadding;
      attempt("--max-tokens-per-gpu " + std::to_string(kLeafPadding) + no_kl, fewer);
    }
    if (!kl) attempt("--kl-coef 0", plan);
    for (int tp = 1; tp <= asked.options.topology.ranks; tp *= 2) {
      Topology& t = plan.options.topology;
      t.tp = tp;
      t.cp = t.ranks / tp;
      t.rollout_tp = asked.options.topology.rollout_tp;
      const std::string option = "--tp " + std::to_string(tp);
      attempt(option + no_kl, plan);
      if (tp <= t.rollout_tp || tp * t.rollout_cp > t.ranks) continue;
      t.rollout_tp = tp;
      attempt(option + " --rollout-tp " + std::to_string(tp) + no_kl, plan);
    }
  }
  std::string text;
  for (const std::string& option : found) text += (text.empty() ? "" : ", or ") + option;
  return text.empty() ? "more GPUs, or GPUs of more memory" : "it would fit with " + text;
}

}  // namespace

void plan_memory(Plan& plan, uint64_t gpu_memory_bytes, std::vector<Diagnostic>& defects) {
  Options& o = plan.options;
  const bool rows_given = o.max_tokens_per_gpu > 0;
  const double share = o.gpu_memory_utilization > 0 ? o.gpu_memory_utilization : kGpuShare;
  const auto budget =
      static_cast<int64_t>(static_cast<double>(gpu_memory_bytes / plan.ranks_per_gpu) * share);
  if (budget > 0) o.gpu_memory_utilization = share;
  Solver solver(plan, budget);
  if (solver.solve()) return;
  std::vector<std::pair<uint64_t, std::string>> items;
  for (const auto& [item, bytes] : plan.memory) items.push_back({bytes, item});
  std::sort(items.rbegin(), items.rend());
  std::string largest;
  for (size_t i = 0; i < std::min<size_t>(4, items.size()); ++i)
    largest += (i ? ", " : "") + items[i].second + " " + format_bytes(items[i].first);
  defects.push_back({"memory plan",
                     "a rank needs " + format_bytes(static_cast<uint64_t>(solver.total())) +
                         " at least (" + largest + "), its share of the GPU is " +
                         format_bytes(static_cast<uint64_t>(budget)),
                     remedies(plan, budget, rows_given)});
}

}  // namespace rlk
