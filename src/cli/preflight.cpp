#include "preflight.h"

#include <algorithm>
#include <optional>

#include "rlk/base/text.h"
#include "rlk/data/chat.h"
#include "rlk/data/checkpoint.h"
#include "rlk/data/prompts.h"
#include "rlk/data/reward.h"
#include "rlk/device/gpus.h"

namespace rlk {
namespace {

template <class Read>
void collect(std::vector<Diagnostic>& defects, Read read) {
  try {
    read();
  } catch (const InputError& error) {
    defects.insert(defects.end(), error.diagnostics().begin(), error.diagnostics().end());
  }
}

void check_prompts(const Plan& plan, const Tokenizer& tokenizer) {
  PromptOptions options;
  options.prompt_key = plan.task.prompt_key;
  options.label_key = reward_needs_label(plan.task.reward) ? plan.task.label_key : "";
  options.chat_template = plan.task.chat_template;
  options.thinking = plan.task.thinking;
  options.max_tokens =
      plan.model.max_position - 1;  // room for one token; longer ones end truncated
  options.sha256 = plan.task.data_sha256;
  const PromptSet prompts(plan.prompt_data, options, tokenizer);
  if (prompts.rows() < plan.options.rollout_batch_size)
    throw InputError(plan.prompt_data.string(), std::to_string(prompts.rows()) + " prompts",
                     "a step takes " + std::to_string(plan.options.rollout_batch_size) +
                         " (--rollout-batch-size)");
}

std::string processes_text(const GpuInfo& gpu) {
  std::string text;
  for (const GpuProcess& p : gpu.processes)
    text += (text.empty() ? "" : ", ") + std::string("process ") + std::to_string(p.pid) +
            " computes on it, with " + format_bytes(p.memory_bytes);
  return text;
}

// A GPU that somebody computes on would be slow, and might be out of memory at any time.
void check_gpus(const Plan& plan) {
  if (plan.options.backend != Backend::cuda) return;
  std::vector<Diagnostic> defects;
  const GpuHost host = gpu_host();
  const int ranks = plan.options.topology.ranks;
  uint64_t rank_bytes = 0;
  for (const auto& [item, bytes] : plan.memory) rank_bytes += bytes;
  for (int first = 0; first < ranks; first += plan.ranks_per_gpu) {
    const int device = plan.device(first), here = std::min(plan.ranks_per_gpu, ranks - first);
    if (device >= static_cast<int>(host.gpus.size())) break;  // make_plan and doctor count them
    const GpuInfo& gpu = host.gpus[device];
    const std::string where = "GPU " + std::to_string(device), busy = processes_text(gpu);
    if (plan.ranks_per_gpu == 1 && !busy.empty())
      defects.push_back(
          {where, busy, "rlk wants its GPUs for itself (ranks_per_gpu shares them on purpose)"});
    else if (const uint64_t need = here * rank_bytes; gpu.free_bytes < need)
      defects.push_back({where,
                         format_bytes(gpu.free_bytes) + " of " + format_bytes(gpu.memory_bytes) +
                             " are free, its ranks need " + format_bytes(need) +
                             (busy.empty() ? "" : "; " + busy),
                         "end the other processes, or take less by --gpu-memory-utilization"});
  }
  if (!defects.empty()) throw InputError(std::move(defects));
}

void check_files(const Plan& plan, std::vector<Diagnostic>& defects) {
  std::optional<Tokenizer> tokenizer;
  collect(defects, [&] { tokenizer.emplace(plan.model_root / "tokenizer.json"); });
  if (tokenizer && tokenizer->size() > plan.model.vocab)
    defects.push_back({(plan.model_root / "tokenizer.json").string(),
                       "has token id " + std::to_string(tokenizer->size() - 1),
                       "the model's vocabulary ends at " + std::to_string(plan.model.vocab - 1)});
  if (tokenizer) collect(defects, [&] { check_prompts(plan, *tokenizer); });
  if (plan.task.chat_template) collect(defects, [&] { check_chat_template(plan.model_root); });
  collect(defects, [&] { Checkpoint(plan.model_root, plan.model).verify(); });
  if (!plan.ref_load.empty())
    collect(defects, [&] { Checkpoint(plan.ref_load, plan.model).verify(); });
}

}  // namespace

void check_inputs(const Plan& plan, const std::filesystem::path& profile) {
  std::vector<Diagnostic> defects;
  collect(defects, [&] { make_reward(plan.task.reward); });
  for (Diagnostic& d : defects) d.where = profile.string() + ": " + d.where;
  if (!plan.synthetic) check_files(plan, defects);
  collect(defects, [&] { check_gpus(plan); });
  if (!defects.empty()) throw InputError(std::move(defects));
}

}  // namespace rlk
