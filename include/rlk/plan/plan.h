#pragma once
// Profile + command line + environment -> Plan: every decision of a run, made before anything
// starts. Pure and byte-stable: the same inputs give the same text. The worker reads plan.json and
// decides nothing again.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rlk/base/topology.h"
#include "rlk/profile/model_config.h"

namespace rlk {

enum class Command { verify, run };
enum class Backend { cpu, cuda };

// Effective values of the options in docs (README, `rlk verify --help`).
struct Options {
  Command command = Command::verify;
  Backend backend = Backend::cpu;
  bool consistency = true;  // --mode; false = native
  Topology topology;
  float temperature = 1.0f, top_p = 1.0f;
  int32_t top_k = -1;
  int64_t steps = 2;
  int64_t max_response_len = 512;
  double lr = 5e-7, weight_decay = 0.1, kl_coef = 0.01, eps_clip = 0.2;
  double beta1 = 0.9, beta2 = 0.98, adam_eps = 1e-8, clip_grad = 1.0;
  bool token_mean = false;         // --loss-aggregation
  int kl_estimator = 3;            // 1, 2, 3
  bool std_normalization = true;   // --grpo-std-normalization
  int64_t save_interval = 0;       // 0 = off
  int threads = 1;                 // CPU threads a rank
  int64_t rollout_batch_size = 1;  // prompts a step
  int64_t samples_per_prompt = 8;
  int64_t global_batch_size = 8;   // samples an optimizer update
  int64_t max_tokens_per_gpu = 0;  // micro-batch tokens a rank, resolved by the plan
  double gpu_memory_utilization = 0;
  uint64_t seed = 1234, rollout_seed = 1234;
  bool strict_attention = true, strict_ffn = true, strict_logp = true;
  bool trace_ops = false;
};

struct Task {
  std::string reward;  // "boxed-exact" is part of deepscaler; see data/reward.h for the names
  std::string prompt_key, label_key;
  bool chat_template = true, thinking = true;
  std::string data_sha256;  // of the prompt file, or empty: any file is taken
};

struct Plan {
  Options options;
  ModelConfig model;
  Task task;
  std::string profile_name, run_id;
  std::optional<SyntheticModel> synthetic;  // then model_root and prompt_data are empty
  std::filesystem::path model_root, ref_load, prompt_data, output_root,
      run_dir;  // absolute; ref_load empty = version 0
  int64_t super_batch_tokens = 65536;
  int32_t page_size = 16;                  // KV page, tokens
  int64_t kv_pages = 0;                    // a rank's KV pages for rollout
  int64_t max_running = 0;                 // sequences an engine runs at once
  uint64_t arena_bytes = 0;                // shared arena a rank
  std::map<std::string, uint64_t> memory;  // part.item -> bytes a rank (docs/formats.md)
  int ranks_per_gpu = 1;

  int device(int rank) const { return rank / ranks_per_gpu; }  // CUDA device index
};

// What a rank's process is started with. The launcher adds the descriptors that it inherits.
std::vector<std::string> worker_argv(const Plan&, int rank);
std::map<std::string, std::string> worker_environment(const Plan&, int rank);

std::string plan_to_json(const Plan&);         // byte-stable, pretty-printed
Plan plan_from_json(const std::string& text);  // what a worker reads; throws InputError
std::string plan_to_text(const Plan&);         // what `rlk plan` prints

}  // namespace rlk
