// What `rlk plan` prints for a person: the layout, the values, the memory.

#include <fmt/format.h>

#include <algorithm>

#include "rlk/base/text.h"
#include "rlk/plan/plan.h"

namespace rlk {
namespace {

std::string list(const std::vector<int>& members) {
  return fmt::format("{}", fmt::join(members, ","));
}

std::string slices(Topology::Range r) {
  return r.count == 1 ? std::to_string(r.first)
                      : fmt::format("{}-{}", r.first, r.first + r.count - 1);
}

std::string layout_text(const Plan& plan) {
  const Topology& t = plan.options.topology;
  std::string text = fmt::format(
      "\nlayout: {} ranks · training tp {} x cp {} · rollout tp {} x cp {}, {} engine{}\n"
      "  {:<5}{:<20}{:<20}{:<22}{}\n",
      t.ranks, t.tp, t.cp, t.rollout_tp, t.rollout_cp, t.engines(), t.engines() == 1 ? "" : "s",
      "rank", "train tp (slices)", "train cp (slices)", "rollout tp (slices)", "engine");
  for (int r = 0; r < t.ranks; ++r)
    text += fmt::format("  {:<5}{:<20}{:<20}{:<22}{}\n", r,
                        fmt::format("{} ({})", t.tp_index(r), slices(t.train_slices(r))),
                        fmt::format("{} ({})", t.cp_index(r), slices(t.cp_slices(r))),
                        fmt::format("{} ({})", t.rollout_tp_index(r), slices(t.rollout_slices(r))),
                        t.rollout_cp == 1
                            ? fmt::format("{} of ranks {}", t.engine(r), list(t.engine_group(r)))
                            : fmt::format("{} of ranks {}, cp {}", t.engine(r),
                                          list(t.engine_group(r)), t.rollout_cp_index(r)));
  return text;
}

std::string values_text(const Plan& plan) {
  const Options& o = plan.options;
  const auto kind = [](bool strict) { return strict ? "strict" : "native"; };
  std::string text;
  text += fmt::format("mode       {} (attention {}, ffn {}, logp {})\n",
                      o.consistency ? "consistency" : "native", kind(o.strict_attention),
                      kind(o.strict_ffn), kind(o.strict_logp));
  text += fmt::format(
      "steps      {} · {} prompts x {} samples, {} an update · at most {} tokens a response\n",
      o.steps, o.rollout_batch_size, o.samples_per_prompt, o.global_batch_size, o.max_response_len);
  text += fmt::format("sampling   temperature {} · top-p {} · top-k {} · seeds {}, {}\n",
                      format_number(o.temperature), format_number(o.top_p), o.top_k, o.seed,
                      o.rollout_seed);
  text += fmt::format(
      "algorithm  grpo, {}, eps-clip {} · KL k{} x {} · std normalization {}\n"
      "optimizer  AdamW lr {} · weight decay {} · betas {}, {} · eps {} · clip {}\n",
      o.token_mean ? "token-mean" : "sample-mean", format_number(o.eps_clip), o.kl_estimator,
      format_number(o.kl_coef), o.std_normalization ? "enabled" : "disabled", format_number(o.lr),
      format_number(o.weight_decay), format_number(o.beta1), format_number(o.beta2),
      format_number(o.adam_eps), format_number(o.clip_grad));
  const std::string save =
      o.save_interval == 0 ? "off" : fmt::format("every {} steps", o.save_interval);
  text += fmt::format(
      "execution  {} CPU threads a rank · {} micro-batch tokens · {} running · checkpoints {}{}\n",
      o.threads, o.max_tokens_per_gpu, plan.max_running, save, o.trace_ops ? " · ops traced" : "");
  return text;
}

std::string files_text(const Plan& plan) {
  const ModelConfig& m = plan.model;
  std::string model = plan.model_root.string(), prompts = plan.prompt_data.string();
  if (const auto& s = plan.synthetic) {
    model = fmt::format("synthetic {}, seed {}", s->shape, s->seed);
    prompts = fmt::format("synthetic, {} tokens each", s->prompt_tokens);
  }
  return fmt::format(
      "model      {} (L {} · D {} · H {} · KH {} · Dh {} · F {} · V {}{})\n"
      "reference  {}\n"
      "prompts    {} (reward {})\n"
      "run dir    {}\n",
      model, m.L, m.D, m.H, m.KH, m.Dh, m.F, m.vocab, m.tied ? ", tied" : "",
      plan.ref_load.empty() ? "the loaded model" : plan.ref_load.string(), prompts,
      plan.task.reward, plan.run_dir.string());
}

std::string memory_text(const Plan& plan) {
  std::string text = "\nmemory a rank, at most\n";
  uint64_t total = 0;
  for (const auto& [item, bytes] : plan.memory) {
    text += fmt::format("  {:<26}{:>12}\n", item, format_bytes(bytes));
    total += bytes;
  }
  text += fmt::format("  {:<26}{:>12}\n", "total", format_bytes(total));
  text += fmt::format("  KV pages: {} of {} tokens\n", plan.kv_pages, plan.page_size);
  if (plan.options.gpu_memory_utilization > 0)
    text += fmt::format("  GPU memory utilization: {}\n",
                        format_number(plan.options.gpu_memory_utilization));
  return text;
}

}  // namespace

std::string plan_to_text(const Plan& plan) {
  const Options& o = plan.options;
  return fmt::format("{} {} · profile {} · {}\n\n", o.command == Command::verify ? "verify" : "run",
                     plan.run_id, plan.profile_name, o.backend == Backend::cpu ? "cpu" : "cuda") +
         values_text(plan) + files_text(plan) + layout_text(plan) + memory_text(plan);
}

}  // namespace rlk
