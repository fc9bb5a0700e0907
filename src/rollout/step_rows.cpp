#include "step_rows.h"

#include <algorithm>

namespace rlk {
namespace {

void add_sampling_row(const SamplingParams& s, StepRows& rows) {
  const bool greedy = s.temperature == 0;
  rows.inv_temp.push_back(greedy ? 0.0f : 1.0f / s.temperature);
  rows.logp_inv_temp.push_back(greedy ? 1.0f : 1.0f / s.temperature);
  rows.top_p.push_back(greedy ? 1.0f : s.top_p);
  rows.top_k.push_back(greedy ? -1 : s.top_k);
  rows.limited |= !greedy && (s.top_p < 1 || s.top_k > 0);
}

}  // namespace

void StepRows::pad(int64_t rows) {
  for (auto row = static_cast<int32_t>(ids.size()); row < rows; ++row) {
    segments.push_back({0, 0, 0, row});
    ids.push_back(0);
    position.push_back(0);
    seq.push_back(-1);
    head_index.push_back(row);
    keys.push_back({});
    draws.push_back(0);
    add_sampling_row({}, *this);
  }
}

StepRows step_rows(const std::vector<Work>& work, const std::vector<GenerateRequest>& requests,
                   const Scheduler& scheduler, uint64_t key) {
  StepRows rows;
  for (const Work& w : work) {
    const GenerateRequest& request = requests[w.request];
    const std::vector<int32_t>& tokens = scheduler.tokens(w.request);
    rows.segments.push_back({w.slot, w.begin, w.len, static_cast<int32_t>(rows.ids.size())});
    rows.max_len = std::max(rows.max_len, w.len);
    rows.max_context = std::max(rows.max_context, w.begin + w.len);
    rows.decode &= w.decode();
    for (int32_t p = w.begin; p < w.begin + w.len; ++p) {
      rows.ids.push_back(tokens[p]);
      rows.position.push_back(p);
      rows.seq.push_back(w.slot);
      rows.trace.push_back({static_cast<int32_t>(request.prompt_index), request.sample_index, p,
                            p + 1 < static_cast<int32_t>(request.prompt.size())});
    }
    if (w.draws == 0) continue;
    rows.draws.push_back(w.draws);
    rows.head_index.push_back(static_cast<int32_t>(rows.ids.size()) - 1);
    rows.head_trace.push_back(rows.trace.back());
    rows.keys.push_back({.key = key,
                         .prompt = static_cast<uint32_t>(request.prompt_index),
                         .sample = static_cast<uint32_t>(request.sample_index),
                         .position = static_cast<uint32_t>(w.begin + w.len)});
    add_sampling_row(request.sampling, rows);
  }
  return rows;
}

}  // namespace rlk
