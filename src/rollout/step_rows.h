#pragma once
// The rows of one rollout forward pass as host arrays: what the scheduler's work means for the
// model. Pure.

#include <cstdint>
#include <vector>

#include "rlk/base/philox.h"
#include "rlk/device/ops.h"
#include "rlk/model/trace.h"
#include "rlk/rollout/engine.h"
#include "rlk/rollout/scheduler.h"

namespace rlk {

struct StepRows {
  std::vector<int32_t> ids, position, seq, head_index, top_k;
  std::vector<int32_t> draws;  // [R] tokens to draw at most
  std::vector<AttentionSegment> segments;
  std::vector<float> inv_temp, logp_inv_temp, top_p;
  std::vector<SampleKey> keys;
  std::vector<TraceRow> trace, head_trace;
  int32_t max_len = 0, max_context = 0;
  bool limited = false;  // some row's support is less than the vocabulary
  bool decode = true;    // every row is the one new token of a sequence

  int64_t T() const { return static_cast<int64_t>(ids.size()); }
  int64_t R() const { return static_cast<int64_t>(head_index.size()); }
  bool every_row_draws() const { return head_index.size() == ids.size(); }
  // Adds idle rows, which belong to no sequence, up to `rows`. REQUIRES: decode.
  void pad(int64_t rows);
};

StepRows step_rows(const std::vector<Work>&, const std::vector<GenerateRequest>&, const Scheduler&,
                   uint64_t key);

}  // namespace rlk
