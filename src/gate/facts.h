#pragma once
// What the gates need to know of a run, read from its manifest. Private to src/gate.

#include <string>

#include "rlk/base/json.h"

namespace rlk {

struct Facts {
  std::string run_id, status, message;
  bool verify = false, cuda = false;
  bool consistency = false;  // --mode
  bool traced = false;       // --trace-ops
  bool strict_attention = false, strict_ffn = false, strict_logp = false;
  int64_t steps = 0;
  int ranks = 0, engines = 0;
  int64_t prompts_per_step = 0, samples_per_prompt = 0, max_response_len = 0;
  double temperature = 0, kl_coef = 0;
  int kl_estimator = 0;

  // Every module strict in consistency mode: the promise of equal bits holds.
  bool promises_equality() const {
    return consistency && strict_attention && strict_ffn && strict_logp;
  }
};

Facts read_facts(const Json& manifest);  // throws InputError

}  // namespace rlk
