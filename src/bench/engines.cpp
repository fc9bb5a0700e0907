// score, train, step: the engines on one rank, warmed up, medians of whole calls.

#include "rlk/bench/engines.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/text.h"
#include "rlk/data/prompts.h"
#include "rlk/device/counted.h"
#include "rlk/rollout/engine.h"
#include "rlk/train/trainer.h"
#include "rlk/worker/fill_weights.h"
#include "rlk/worker/local_rank.h"

namespace rlk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

int64_t parameters(const ModelConfig& m) {
  int64_t n = 0;
  for (const TensorSpec& t : model_tensors(m)) n += t.rows * t.cols;
  return n;
}

class EngineBench {
 public:
  explicit EngineBench(const EngineBenchOptions& options)
      : o_(options),
        config_(model_of_shape(options.shape, "--shape")),
        page_(LocalRank::page_size(options.backend)),
        rank_(options.backend, std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
              config_, arena(),
              [this](Weights& weights, const Ops& ops) {
                make_weights(weights, ops, static_cast<uint64_t>(o_.seed));
              }),
        context_(counted_context()),
        trainer_(context_, rank_.weights(), rank_.world(), trainer_options()) {
    const PromptSet ids = PromptSet::synthetic(static_cast<uint64_t>(o_.seed),
                                               o_.prompt + o_.response, config_.vocab);
    for (int64_t i = 0; i < o_.sequences; ++i) {
      Sample s;
      s.prompt = i;
      s.prompt_len = static_cast<int32_t>(o_.prompt);
      s.tokens = ids.tokens(i);
      s.advantage = i % 2 == 0 ? 1 : -1;
      s.rollout_logp.assign(static_cast<size_t>(o_.response), -12.0f);
      s.ref_logp = s.rollout_logp;
      samples_.push_back(std::move(s));
    }
  }

  int run() {
    const bool score = o_.what == "score";
    if (o_.what == "step") make_engine();
    const auto once = [&] {
      if (score)
        trainer_.score(rank_.view(), false, samples_, &Sample::train_logp);
      else if (o_.what == "train")
        trainer_.gradients(samples_, 0, count());
      else
        step();
    };
    once();  // allocates, and warms up
    once();
    stages_.clear();
    if (o_.by_op) return by_op(once);
    std::vector<double> times;
    for (int i = 0; i < o_.repeat; ++i) {
      const auto start = std::chrono::steady_clock::now();
      once();
      rank_.ops().synchronize(nullptr);
      times.push_back(seconds_since(start));
    }
    report(times, score ? 2 : 6);
    return kExitOk;
  }

 private:
  int count() const { return static_cast<int>(o_.sequences); }
  int64_t pages_of_a_sequence() const { return (o_.prompt + o_.response + page_ - 1) / page_; }

  size_t arena() const {
    const ArenaLayout layout(config_, kSlices);
    const int64_t gradients = 2 * layout.layer_elements() + layout.outer_elements();
    const int64_t kv = o_.what != "step" ? 0
                                         : config_.L * 2 * o_.sequences * pages_of_a_sequence() *
                                               page_ * config_.KH * config_.Dh;
    return static_cast<size_t>(gradients) * sizeof(float) + static_cast<size_t>(kv) * sizeof(bf16) +
           static_cast<size_t>(config_.L) * 2 * 256;
  }

  TrainerOptions trainer_options() const {
    TrainerOptions t{};
    t.topology = LocalRank::topology();
    t.grpo.kl_coef = 0.01;
    t.adamw = {
        .lr = 5e-7, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.1, .clip_grad = 1};
    t.temperature = t.top_p = 1;
    t.top_k = -1;
    t.super_batch_tokens = 65536;
    t.max_tokens = o_.head_rows;
    t.page_size = page_;
    t.activation_bytes = static_cast<int64_t>(o_.activation_gib * (1 << 30));
    using Use = TrainerOptions::Use;
    t.use = o_.what == "step" ? Use::update : o_.what == "train" ? Use::gradients : Use::score;
    return t;
  }

  // Counted by module, for --by-op.
  Context counted_context() {
    Context c = rank_.context();
    const Ops& ops = rank_.ops();
    c.attention = &counted(ops, ops, OpModule::attention);
    c.ffn = &counted(ops, ops, OpModule::ffn);
    c.logp = &counted(ops, ops, OpModule::logp);
    return c;
  }

  void make_engine() {
    RolloutOptions r{};
    r.topology = LocalRank::topology();
    r.page_size = page_;
    r.pages_per_rank = o_.sequences * pages_of_a_sequence();
    r.max_running = o_.sequences;
    r.max_batch_tokens = o_.head_rows;
    r.max_context = o_.prompt + o_.response;
    engine_ = std::make_unique<RolloutEngine>(context_, rank_.world(), r);
  }

  // Generates, scores the reference (here the same weights) and makes one update.
  void step() {
    std::vector<GenerateRequest> requests;
    for (const Sample& s : samples_)
      requests.push_back({.prompt_index = s.prompt,
                          .sample_index = s.sample,
                          .prompt = {s.tokens.begin(), s.tokens.begin() + s.prompt_len},
                          .max_new = o_.response,
                          .sampling = {}});
    auto start = std::chrono::steady_clock::now();
    const auto results = engine_->generate(rank_.view(), requests, 1, ++steps_);
    for (size_t i = 0; i < results.size(); ++i) {
      samples_[i].tokens = results[i].tokens;
      samples_[i].rollout_logp = results[i].logp;
    }
    const double rollout = seconds_since(start);
    start = std::chrono::steady_clock::now();
    trainer_.score(rank_.view(), true, samples_, &Sample::ref_logp);
    const double score = seconds_since(start);
    const UpdateResult r = trainer_.update(samples_, 0, count(), static_cast<int64_t>(steps_));
    stages_.push_back({rollout, score, r.forward_s + r.backward_s, r.optimizer_s + r.sync_s});
  }

  int by_op(const std::function<void()>& once) {
    const auto before = op_counts();
    time_ops();
    once();
    std::vector<std::pair<double, std::string>> ops;
    double sum = 0;
    auto counts = op_counts();
    for (const auto& [op, count] : before) counts[op].calls -= count.calls;
    for (const auto& [op, count] : counts) {
      if (count.calls > 0) ops.push_back({count.seconds, op});
      sum += count.seconds;
    }
    std::sort(ops.rbegin(), ops.rend());
    std::printf("%-28s %8s %10s %6s\n", "op", "calls", "ms", "%");
    for (const auto& [s, op] : ops)
      std::printf("%-28s %8llu %10.3f %6.1f\n", op.c_str(),
                  static_cast<unsigned long long>(counts[op].calls), s * 1e3, 100 * s / sum);
    std::printf("%-28s %8s %10.3f\n", "all ops", "", sum * 1e3);
    return kExitOk;
  }

  void report(const std::vector<double>& times, int per_parameter) const {
    const double s = median(times);
    double tokens = 0;
    for (const Sample& sample : samples_) tokens += static_cast<double>(sample.tokens.size()) - 1;
    std::printf("%s %s: %lld x %lld tokens, median of %d: %.2f ms, %.0f tokens/s", o_.what.c_str(),
                o_.shape.c_str(), static_cast<long long>(o_.sequences),
                static_cast<long long>(o_.prompt + o_.response), o_.repeat, s * 1e3, tokens / s);
    if (o_.what != "step")
      std::printf(", %.1f TFLOP/s at %dN",
                  tokens / s * per_parameter * static_cast<double>(parameters(config_)) / 1e12,
                  per_parameter);
    if (o_.what == "train") {
      const int64_t T = make_super_batches(samples_, 0, count(), 1, 65536)[0].T;
      const auto bytes = static_cast<int64_t>(o_.activation_gib * (1 << 30));
      std::printf(", %d of %lld layers kept", kept_layers(config_, T, kSlices, bytes),
                  static_cast<long long>(config_.L));
    }
    if (rank_.ops().memory_used != nullptr)
      std::printf(", device memory %s", format_bytes(rank_.ops().memory_used()).c_str());
    std::printf("\n");
    const char* names[] = {"rollout", "score", "train", "optimizer"};
    for (int i = 0; !stages_.empty() && i < 4; ++i) {
      std::vector<double> stage;
      for (const auto& all : stages_) stage.push_back(all[static_cast<size_t>(i)]);
      std::printf("  %-10s %10.2f ms\n", names[i], median(stage) * 1e3);
    }
  }

  EngineBenchOptions o_;
  ModelConfig config_;
  int32_t page_;
  LocalRank rank_;
  Context context_;
  Trainer trainer_;
  std::unique_ptr<RolloutEngine> engine_;
  std::vector<Sample> samples_;
  std::vector<std::array<double, 4>> stages_;
  uint64_t steps_ = 0;
};

}  // namespace

int bench_engines(const EngineBenchOptions& options, std::vector<Diagnostic> defects) {
  const auto positive = [&](const char* name, int64_t value) {
    if (value < 1) defects.push_back({name, std::to_string(value), "must be at least 1"});
  };
  if (options.what != "score" && options.what != "train" && options.what != "step")
    defects.push_back(
        {"rlk bench", "\"" + printable(options.what) + "\"", "must be score, train or step"});
  positive("--sequences", options.sequences);
  positive("--prompt", options.prompt);
  positive("--response", options.response);
  positive("--head-rows", options.head_rows);
  positive("--repeat", options.repeat);
  if (!defects.empty()) throw InputError(defects);
  const ModelConfig m = model_of_shape(options.shape, "--shape");
  if (options.prompt + options.response > m.max_position)
    throw InputError("--response", std::to_string(options.response),
                     "with --prompt at most " + std::to_string(m.max_position));
  return EngineBench(options).run();
}

}  // namespace rlk
