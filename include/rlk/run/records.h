#pragma once
// The records of a run directory as values: what the writer takes and the reader gives back. Plain
// data, no I/O. Files and meanings: docs/formats.md.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rlk/base/json.h"
#include "rlk/base/sha256.h"
#include "rlk/data/trajectory.h"

namespace rlk {

// One optimizer update.
struct UpdateMetrics {
  double loss = 0, policy_loss = 0, kl = 0, clip_fraction = 0;
  double grad_norm = 0;  // before clipping
  double lr = 0;
};

struct StageSeconds {
  double rollout = 0, sync = 0, score = 0, train = 0, optimizer = 0, audit = 0;
  double step = 0;  // wall clock of the whole step
};

// One line of metrics.jsonl. `summarise` fills everything that follows from the samples; the caller
// adds updates and seconds.
struct StepMetrics {
  int64_t step = 0;
  uint64_t weight_version = 0;  // that the step sampled with
  int64_t samples = 0, prompt_tokens = 0, response_tokens = 0;
  double reward_mean = 0, reward_std = 0;
  double response_len_mean = 0;
  int64_t response_len_max = 0;
  double truncated_ratio = 0;
  double advantage_min = 0, advantage_max = 0;
  int64_t mismatch_count = 0;  // tokens whose two log-probs differ in any bit or are not finite
  double mismatch_max_abs = 0, mismatch_mean_abs = 0;  // over all response tokens
  std::vector<UpdateMetrics> updates;
  StageSeconds seconds;
};

// Sums in fp64 in (prompt, sample, position) order, so that no layout changes them.
StepMetrics summarise(const Trajectory&);
Json to_json(const StepMetrics&);

// One line of a step's trajectory file.
struct SampleText {
  int64_t prompt = 0;
  int32_t sample = 0;
  std::string prompt_text, response_text, label;
  double reward = 0, advantage = 0;
  bool truncated = false;
};

// Fingerprints of one exported tensor; version 0 has the weight's alone.
struct TensorFingerprints {
  Digest weight{};
  std::optional<Digest> gradient, master, exp_avg, exp_avg_sq;
};

struct VersionFingerprints {
  uint64_t version = 0;
  std::map<std::string, TensorFingerprints> tensors;  // by exported name
};

// What the rollout engines hold right before a step's generation.
struct RolloutFingerprints {
  int64_t step = 0;
  uint64_t version = 0;
  std::vector<std::map<std::string, Digest>> engines;
};

// What one entry of a rank's Ops table did.
struct OpReadback {
  std::string implementation;  // "cpu", "cuda", "cublaslt"
  bool strict = true;
  uint64_t calls = 0, fallbacks = 0;
};

struct GraphReadback {
  std::vector<int64_t> planned, captured;  // batch sizes
  std::map<int64_t, uint64_t> replays;     // by batch size
  uint64_t eager_decodes = 0;              // decode steps that ran without a graph
};

// The memory plan against the device at the end, when every buffer has its final size.
struct MemoryReadback {
  uint64_t planned = 0;  // bytes of this rank
  uint64_t used = 0;     // of its GPU, by all that share it
};

// A rank's last words, written when it has finished its work.
struct RankRecord {
  int rank = 0;
  int64_t pid = 0, steps = 0;
  std::map<std::string, OpReadback> ops;  // by "module.op"
  std::optional<GraphReadback> graphs;    // CUDA only
  std::optional<MemoryReadback> memory;   // CUDA only
};

// How a rank's process ended, as its parent saw it.
struct RankExit {
  int rank = 0;
  int code = 0;    // exit code; 0 when a signal ended it
  int signal = 0;  // 0 when it exited
};

enum class RunStatus { running, finished, failed, interrupted };
const char* run_status_name(RunStatus);

}  // namespace rlk
