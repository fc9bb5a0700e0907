#include "step_loop.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "audit.h"
#include "checkpoint.h"
#include "op_trace.h"
#include "rewards.h"
#include "rlk/base/error.h"
#include "rlk/device/counted.h"
#include "rlk/run/run_writer.h"
#include "rollout_stage.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds since construction or the last call.
class Stopwatch {
 public:
  double lap() {
    const auto now = Clock::now();
    const double s = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return s;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

UpdateMetrics loss_metrics(const Options& o, const std::vector<Sample>& samples, int first,
                           int count, double grad_norm) {
  const GrpoOptions grpo{.eps_clip = o.eps_clip,
                         .kl_coef = o.kl_coef,
                         .kl_estimator = o.kl_estimator,
                         .token_mean = o.token_mean,
                         .std_normalization = o.std_normalization};
  UpdateMetrics m;
  double clipped = 0, tokens = 0;
  for (int i = first; i < first + count; ++i) {
    const double weight = token_weight(samples, first, count, i, grpo);
    for (int t = 0; t < samples[i].response_len(); ++t) {
      const TokenLoss loss = token_loss(samples[i], t, samples[i].train_logp[t], grpo);
      m.policy_loss += weight * loss.policy;
      m.kl += weight * loss.kl;
      clipped += loss.clipped;
      tokens += 1;
    }
  }
  m.loss = m.policy_loss + o.kl_coef * m.kl;
  m.clip_fraction = clipped / tokens;
  m.grad_norm = grad_norm;
  m.lr = o.lr;
  return m;
}

// Every planned sample came back from an engine, with a log-prob for every token: the update counts
// on it.
void require_samples(const Plan& plan, const Trajectory& t) {
  const auto planned =
      static_cast<size_t>(plan.options.rollout_batch_size * plan.options.samples_per_prompt);
  if (t.samples.size() != planned)
    throw Error("step " + std::to_string(t.step) + ": the engines returned " +
                std::to_string(t.samples.size()) + " samples, planned were " +
                std::to_string(planned));
  for (const Sample& s : t.samples)
    if (s.response_len() < 1 || s.rollout_logp.size() != static_cast<size_t>(s.response_len()))
      throw Error("step " + std::to_string(t.step) + ": no engine answered prompt " +
                  std::to_string(s.prompt) + ", sample " + std::to_string(s.sample));
}

class StepLoop {
 public:
  StepLoop(Rank& rank, StatusWriter& status, const StepHooks& hooks)
      : rank_(rank), status_(status), hooks_(hooks), writer_(rank.plan.run_dir) {}

  void run() {
    audit_version(0, false);
    for (int64_t step = 0; step < rank_.plan.options.steps; ++step) one_step(step);
    enter("finish", rank_.plan.options.steps - 1, TracePhase::optimizer);
    write_rank_record();
    // Nobody lets go of shared memory that another rank may still read.
    rank_.ops.strict->synchronize(nullptr);
    rank_.everyone->barrier(nullptr);
  }

 private:
  void one_step(int64_t step) {
    const Options& o = rank_.plan.options;
    StageSeconds seconds;
    Stopwatch whole, watch;

    enter("rollout", step, TracePhase::rollout);
    if (hooks_.before_rollout) hooks_.before_rollout(rank_, step);
    const RolloutFingerprints held = fingerprint_rollout(rank_, step, static_cast<uint64_t>(step));
    if (rank_.leader()) writer_.write_rollout_weights(held);
    seconds.audit = watch.lap();
    const auto rows = rows_of_step(o.seed, step, rank_.prompts.rows(), o.rollout_batch_size);
    Trajectory t = rollout_stage(rank_, step, static_cast<uint64_t>(step), rows);
    if (hooks_.sampled) hooks_.sampled(rank_, t);
    require_samples(rank_.plan, t);
    std::vector<SampleText> texts = reward_stage(rank_, t);
    set_advantages(t.samples, o.std_normalization);
    for (size_t i = 0; i < texts.size(); ++i) texts[i].advantage = t.samples[i].advantage;
    seconds.rollout = watch.lap();

    enter("score", step, TracePhase::reference);
    if (rank_.reference)
      rank_.trainer->score(rank_.reference->view(rank_.topology().train_slices(rank_.index())),
                           true, t.samples, &Sample::ref_logp);
    seconds.score = watch.lap();

    enter("train", step, TracePhase::train_forward);
    StepMetrics metrics = update(t, seconds);
    watch.lap();

    enter("audit", step, TracePhase::optimizer);
    audit_version(static_cast<uint64_t>(step) + 1, true);
    seconds.audit += watch.lap();
    const bool last = step + 1 == o.steps;
    if (o.save_interval > 0 && (last || (step + 1) % o.save_interval == 0))
      save_checkpoint(rank_, static_cast<uint64_t>(step) + 1);
    seconds.step = whole.lap();
    metrics.seconds = seconds;
    if (hooks_.recorded) hooks_.recorded(rank_, t);
    if (rank_.leader()) {
      writer_.write_sidecar(t);
      writer_.write_texts(step, texts);
      writer_.append_metrics(metrics);
    }
    report(step, metrics);
    if (rank_.trace) rank_.trace->flush();
  }

  // The optimizer updates of a step: global_batch_size samples each.
  StepMetrics update(Trajectory& t, StageSeconds& seconds) {
    const Options& o = rank_.plan.options;
    const auto total = static_cast<int>(t.samples.size());
    const auto each = static_cast<int>(o.global_batch_size);
    // The audited log-probs are those of the weights that sampled; later updates compute their own.
    std::vector<std::vector<float>> first_logp(total);
    if (each < total) {
      Stopwatch watch;
      rank_.trainer->score(rank_.weights.view(rank_.topology().train_slices(rank_.index())), false,
                           t.samples, &Sample::train_logp);
      for (int i = 0; i < total; ++i) first_logp[i] = t.samples[i].train_logp;
      seconds.score += watch.lap();
    }
    std::vector<UpdateMetrics> updates;
    for (int first = 0; first < total; first += each) {
      const UpdateResult r = rank_.trainer->update(t.samples, first, each, ++updates_);
      seconds.train += r.forward_s + r.backward_s;
      seconds.optimizer += r.optimizer_s;
      seconds.sync += r.sync_s;
      updates.push_back(loss_metrics(o, t.samples, first, each, r.gradient_norm));
    }
    if (each < total)
      for (int i = 0; i < total; ++i) t.samples[i].train_logp = first_logp[i];
    StepMetrics metrics = summarise(t);
    metrics.updates = updates;
    return metrics;
  }

  void audit_version(uint64_t version, bool with_state) {
    const VersionFingerprints prints = fingerprint_version(rank_, version, with_state);
    if (rank_.leader()) writer_.write_version(prints);
  }

  void enter(const char* phase, int64_t step, TracePhase traced) {
    status_.phase(phase, step);
    if (rank_.trace) rank_.trace->enter(step, traced);
  }

  void report(int64_t step, const StepMetrics& m) {
    if (!rank_.leader()) return;
    done_s_ += m.seconds.step;
    Progress p;
    p.phase = "train";
    p.step = step;
    p.steps = rank_.plan.options.steps;
    p.fraction = 1;
    p.tokens_per_s = static_cast<double>(m.prompt_tokens + m.response_tokens) / m.seconds.step;
    p.eta_s = done_s_ / static_cast<double>(step + 1) * static_cast<double>(p.steps - step - 1);
    char note[64];
    std::snprintf(note, sizeof note, "reward %.3f", m.reward_mean);
    p.note = note;
    status_.progress(p);
  }

  void write_rank_record() {
    RankRecord record;
    record.rank = rank_.index();
    record.pid = ::getpid();
    record.steps = rank_.plan.options.steps;
    for (const auto& [op, count] : op_counts())
      record.ops[op] = {count.implementation, count.strict, count.calls, 0};
    if (rank_.plan.options.backend == Backend::cuda)
      record.graphs = {rank_.engine->graph_sizes(), rank_.engine->captured_sizes(),
                       rank_.engine->graph_replays(), rank_.engine->eager_decodes()};
    if (rank_.ops.strict->memory_used != nullptr) {
      MemoryReadback& memory = record.memory.emplace();
      for (const auto& [item, bytes] : rank_.plan.memory) memory.planned += bytes;
      memory.used = rank_.ops.strict->memory_used();
    }
    writer_.write_rank_record(record);
  }

  Rank& rank_;
  StatusWriter& status_;
  const StepHooks& hooks_;
  RunWriter writer_;
  int64_t updates_ = 0;
  double done_s_ = 0;
};

}  // namespace

void run_steps(Rank& rank, StatusWriter& status, const StepHooks& hooks) {
  StepLoop(rank, status, hooks).run();
}

}  // namespace rlk
