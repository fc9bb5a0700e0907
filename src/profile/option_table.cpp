#include "rlk/profile/option_table.h"

#include <algorithm>

namespace rlk {
namespace {

constexpr bool kEverywhere = true;
constexpr bool kNotInProfile =
    false;  // the profile has a section of its own for it, or it is a matter of one call

}  // namespace

const std::vector<OptionSpec>& option_table() {
  static const std::vector<OptionSpec> table = {
      {"backend", "", "auto|cpu|cuda", "where the ranks compute (profile)", "Layout",
       kNotInProfile},
      {"mode", "", "consistency|native", "strict kernels and gates, or the fast ones (consistency)",
       "Layout", kEverywhere},
      {"tp", "tp-size", "N", "training tensor parallelism (4)", "Layout", kEverywhere},
      {"cp", "cp-size", "N", "training context parallelism (ranks / tp)", "Layout", kEverywhere},
      {"rollout-tp", "rollout-tp-size", "N", "rollout tensor parallelism (4)", "Layout",
       kEverywhere},
      {"rollout-cp", "rollout-cp-size", "N", "rollout context parallelism (1)", "Layout",
       kEverywhere},
      {"temperature", "rollout-temperature", "X", "sampling temperature, 0 = greedy (1.0)",
       "Sampling", kEverywhere},
      {"top-p", "rollout-top-p", "X", "nucleus mass (1.0)", "Sampling", kEverywhere},
      {"top-k", "rollout-top-k", "N", "most likely tokens kept, -1 = all (-1)", "Sampling",
       kEverywhere},
      {"steps", "rollouts", "N", "optimizer steps (verify 2, run 200)", "Training", kEverywhere},
      {"max-response-len", "max-response-length", "N", "tokens a response (verify 512, run 7168)",
       "Sampling", kEverywhere},
      {"lr", "", "X", "learning rate, constant (5e-7)", "Training", kEverywhere},
      {"weight-decay", "", "X", "AdamW weight decay (0.1)", "Training", kEverywhere},
      {"kl-coef", "", "X", "weight of the KL term (verify 0.01, run 0)", "Training", kEverywhere},
      {"eps-clip", "", "X", "clip range of the ratio (0.2)", "Training", kEverywhere},
      {"loss-aggregation", "", "sample-mean|token-mean",
       "how token losses are averaged (sample-mean)", "Training", kEverywhere},
      {"kl-estimator", "", "k1|k2|k3", "estimator of the KL term (k3)", "Training", kEverywhere},
      {"save-interval", "", "N|off", "export a checkpoint every N steps (off)", "Files",
       kEverywhere},
      {"threads", "", "N", "CPU threads a rank (cores / ranks)", "Execution", kEverywhere},
      {"rollout-batch-size", "", "N", "prompts a step (1)", "Training", kEverywhere},
      {"samples-per-prompt", "n-samples-per-prompt", "N", "responses a prompt (8)", "Training",
       kEverywhere},
      {"global-batch-size", "", "N", "samples an update (prompts x samples)", "Training",
       kEverywhere},
      {"max-tokens-per-gpu", "", "N", "micro-batch tokens a rank (from the memory plan)",
       "Execution", kEverywhere},
      {"gpu-memory-utilization", "vllm-gpu-memory-utilization", "X",
       "share of GPU memory used (from the memory plan)", "Execution", kEverywhere},
      {"grpo-std-normalization", "", "enabled|disabled",
       "divide advantages by the group's std (enabled)", "Training", kEverywhere},
      {"seed", "", "N", "seed of data order (1234)", "Training", kEverywhere},
      {"rollout-seed", "", "N", "seed of sampling (1234)", "Sampling", kEverywhere},
      {"modules", "", "LIST", "attention=strict|native,ffn=...,logp=... (from mode)", "Layout",
       kEverywhere},
      {"group", "", "M000..M111", "the same in bits: attention, FFN, logp; 1 = strict", "Layout",
       kEverywhere},
      {"launcher", "", "local", "who starts the ranks (local)", "Execution", kNotInProfile},
      {"run-id", "", "NAME", "name of the run, never reused (<command>-<UTC>-<4 hex>)", "Files",
       kNotInProfile},
      {"output-root", "", "DIR", "folder of the run directories (profile)", "Files", kNotInProfile},
      {"model-root", "", "DIR", "Hugging Face model folder (profile)", "Files", kNotInProfile},
      {"ref-load", "", "DIR", "reference model of the KL term (the loaded model)", "Files",
       kNotInProfile},
      {"prompt-data", "", "FILE", "prompts, JSON lines (profile)", "Files", kNotInProfile},
      {"workspace", "", "DIR", "folder for prepared assets and runs (profile)", "Files",
       kNotInProfile},
      {"trace-ops", "", "", "record a hash of every op's output for `rlk debug`", "Execution",
       kEverywhere},
  };
  return table;
}

const OptionSpec* find_option(std::string_view name) {
  for (const OptionSpec& spec : option_table())
    if (spec.name == name || (!spec.alias.empty() && spec.alias == name)) return &spec;
  return nullptr;
}

std::vector<std::string> environment_names(const OptionSpec& spec) {
  std::string suffix = spec.name;
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  std::vector<std::string> names = {"RLK_" + suffix};
  const bool path = spec.value == "DIR" || spec.value == "FILE";
  if (path) names.push_back("RLK_REPRO_" + suffix);
  return names;
}

}  // namespace rlk
