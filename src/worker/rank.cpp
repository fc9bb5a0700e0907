#include "rank.h"

#include <numeric>

#include "op_trace.h"
#include "rlk/base/error.h"
#include "rlk/device/counted.h"
#include "rlk/worker/fill_weights.h"
#include "wiring.h"

namespace rlk {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The weights that `dir` holds, or that a synthetic model's seed makes.
void load(Weights& weights, const Ops& ops, const Plan& plan, const std::filesystem::path& dir) {
  if (plan.synthetic)
    make_weights(weights, ops, plan.synthetic->seed);
  else
    load_weights(weights, ops, dir, plan.model);
}

const Ops& native_ops(const Plan& plan, [[maybe_unused]] int rank) {
#ifdef RLK_CUDA
  if (plan.options.backend == Backend::cuda) return cuda_native_ops(plan.device(rank));
#endif
  return cpu_native_ops(plan.options.threads);
}

// NCCL's sums over a TP group, where a native module has a use for them.
std::unique_ptr<NativeSum> open_native_sum([[maybe_unused]] const Plan& plan,
                                           [[maybe_unused]] World& host,
                                           [[maybe_unused]] const Communicator& tp,
                                           [[maybe_unused]] const char* name) {
#ifdef RLK_CUDA
  const Options& o = plan.options;
  const bool strict = o.strict_attention && o.strict_ffn && o.strict_logp;
  if (o.backend == Backend::cuda && !strict && tp.size() > 1)
    return nccl_sum(*host.group(tp.members(), name));
#endif
  return nullptr;
}

void use_native_sums(Context& ctx, const Options& o, NativeSum* sum) {
  if (!o.strict_attention) ctx.attention_sum = sum;
  if (!o.strict_ffn) ctx.ffn_sum = sum;
  if (!o.strict_logp) ctx.logp_sum = sum;
}

std::optional<Tokenizer> read_tokenizer(const Plan& plan) {
  if (plan.synthetic) return std::nullopt;
  return Tokenizer(plan.model_root / "tokenizer.json");
}

PromptSet read_prompts(const Plan& plan, const std::optional<Tokenizer>& tokenizer) {
  if (const auto& s = plan.synthetic)
    return PromptSet::synthetic(s->seed, s->prompt_tokens, plan.model.vocab);
  PromptOptions options;
  options.prompt_key = plan.task.prompt_key;
  options.label_key = reward_needs_label(plan.task.reward) ? plan.task.label_key : "";
  options.chat_template = plan.task.chat_template;
  options.thinking = plan.task.thinking;
  options.max_tokens = plan.model.max_position - 1;
  options.sha256 = plan.task.data_sha256;
  return PromptSet(plan.prompt_data, options, *tokenizer);
}

TrainerOptions trainer_options(const Plan& plan) {
  const Options& o = plan.options;
  TrainerOptions t{};
  t.topology = o.topology;
  t.grpo = {.eps_clip = o.eps_clip,
            .kl_coef = o.kl_coef,
            .kl_estimator = o.kl_estimator,
            .token_mean = o.token_mean,
            .std_normalization = o.std_normalization};
  t.adamw = {.lr = o.lr,
             .beta1 = o.beta1,
             .beta2 = o.beta2,
             .eps = o.adam_eps,
             .weight_decay = o.weight_decay,
             .clip_grad = o.clip_grad};
  t.temperature = o.temperature;
  t.top_p = o.top_p;
  t.top_k = o.top_k;
  t.super_batch_tokens = plan.super_batch_tokens;
  t.max_tokens = o.max_tokens_per_gpu;
  t.page_size = plan.page_size;
  t.activation_bytes = static_cast<int64_t>(plan.memory.at("train.activations"));
  return t;
}

RolloutOptions rollout_options(const Plan& plan) {
  RolloutOptions r{};
  r.topology = plan.options.topology;
  r.page_size = plan.page_size;
  r.pages_per_rank = plan.kv_pages;
  r.max_running = plan.max_running;
  r.max_batch_tokens = plan.options.max_tokens_per_gpu;
  r.max_context = plan.model.max_position;
  r.stop = plan.model.eos;
  return r;
}

}  // namespace

OpTables make_op_tables(const Plan& plan, int rank) {
  const Options& o = plan.options;
  const Ops& strict = strict_ops(o.backend, plan.device(rank), o.threads);
  const bool all = o.strict_attention && o.strict_ffn && o.strict_logp;
  const Ops& native = all ? strict : native_ops(plan, rank);
  return counted_tables(strict, o.strict_attention ? strict : native,
                        o.strict_ffn ? strict : native, o.strict_logp ? strict : native);
}

OpTables counted_tables(const Ops& strict, const Ops& attention, const Ops& ffn, const Ops& logp) {
  return {&counted(strict, strict, OpModule::run), &counted(attention, strict, OpModule::attention),
          &counted(ffn, strict, OpModule::ffn), &counted(logp, strict, OpModule::logp)};
}

Rank::Rank(const Plan& p, World& host, const OpTables& tables, std::chrono::milliseconds timeout)
    : plan(p),
      host_(host),
      everyone(host_.group(all_ranks(host_.size()), "all")),
      ops(tables),
      device_(open_device_world(plan.options.backend, host_, plan.arena_bytes, timeout)),
      world(device_ ? *device_ : host_),
      tokenizer(read_tokenizer(plan)),
      prompts(read_prompts(plan, tokenizer)),
      rope(upload_rope(*ops.strict, plan.model)),
      train_tp(world.group(topology().tp_group(index()), "tp")),
      rollout_tp(world.group(topology().rollout_tp_group(index()), "rollout tp")),
      train_sum(open_native_sum(plan, host_, *train_tp, "tp nccl")),
      rollout_sum(open_native_sum(plan, host_, *rollout_tp, "rollout tp nccl")),
      weights(plan.model, world, topology(), true) {
  load(weights, *ops.strict, plan, plan.model_root);
  if (plan.options.kl_coef > 0) {
    reference = std::make_unique<Weights>(plan.model, world, topology(), false);
    load(*reference, *ops.strict, plan, plan.ref_load.empty() ? plan.model_root : plan.ref_load);
  }
  if (plan.options.trace_ops) trace = std::make_unique<OpTrace>(plan.run_dir, index(), *ops.strict);
  train_context = {.attention = ops.attention,
                   .ffn = ops.ffn,
                   .logp = ops.logp,
                   .stream = nullptr,
                   .tp = train_tp.get(),
                   .config = plan.model,
                   .rope = static_cast<const float*>(rope.ensure(0)),
                   .trace = trace.get()};
  rollout_context = train_context;
  rollout_context.tp = rollout_tp.get();
  use_native_sums(train_context, plan.options, train_sum.get());
  use_native_sums(rollout_context, plan.options, rollout_sum.get());
  if (ops.strict->stream_create) rollout_context.stream = ops.strict->stream_create();
  trainer = std::make_unique<Trainer>(train_context, weights, world, trainer_options(plan));
  engine = std::make_unique<RolloutEngine>(rollout_context, world, rollout_options(plan));
  if (leader()) reward = make_reward(plan.task.reward);
}

Rank::~Rank() = default;

}  // namespace rlk
