#pragma once
// Scoring and generating with a checkpoint, by one rank in this process: the engines of a run with
// the same ops in the same order, so the bits are a run's (R1: layouts do not matter). No launcher,
// no run directory. Each function reads its input as a whole and reports every defect before the
// weights are loaded. One thread. The lines: docs/formats.md.

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>

#include "rlk/plan/plan.h"
#include "rlk/rollout/engine.h"

namespace rlk {

struct LocalModel {
  std::filesystem::path dir;  // a Hugging Face folder
  Backend backend = Backend::cpu;
  int threads = 1;
};

struct ScoreOptions {
  LocalModel model;
  SamplingParams sampling;    // what the tokens are judged under
  std::filesystem::path out;  // .safetensors: tensors; else lines; empty: lines on `lines`
};

// Log-probs of given tokens. Returns how many tokens were scored.
int64_t score_lines(const ScoreOptions&, std::istream& in, const std::string& source,
                    std::ostream& lines);

struct GenerateOptions {
  LocalModel model;
  SamplingParams sampling;
  uint64_t seed = 1234;  // a run's --rollout-seed, with which this gives step 0's samples
  int64_t max_response_len = 512;
  int32_t samples = 1;  // a prompt
  bool chat_template = true, thinking = true;
  std::string prompt_key = "prompt";
};

// One prompt, its response written piece by piece as it is drawn (samples one after the other).
void generate_text(const GenerateOptions&, const std::string& prompt, std::ostream& out);
// A file of prompts, one JSON object a line; one line a sample, in order.
void generate_lines(const GenerateOptions&, const std::filesystem::path& prompts,
                    std::ostream& out);

}  // namespace rlk
