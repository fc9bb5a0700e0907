#include "op_trace.h"

#include "rlk/base/error.h"
#include "rlk/base/trace_hash.h"

namespace rlk {
namespace {

// In execution order; model/forward.cpp, head.cpp and backward.cpp name them.
const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names{
      "embedding", "residual",  "input_norm",  "qkv",         "rope",         "attention",
      "o_proj",    "post_norm", "gate_up",     "swiglu",      "down",         "final_norm",
      "logits",    "support",   "logp",        "d_logits",    "d_final_norm", "d_residual",
      "d_act",     "d_gate_up", "d_post_norm", "d_attention", "d_q",          "d_k",
      "d_v",       "d_qkv",     "d_input_norm"};
  return names;
}

}  // namespace

OpTrace::OpTrace(const std::filesystem::path& run_dir, int rank, const Ops& ops)
    : writer_(run_dir, rank, op_names()), ops_(ops) {
  for (const std::string& name : op_names())
    index_.emplace(name, static_cast<uint16_t>(index_.size()));
}

void OpTrace::record(const char* op, int layer, const void* data, int64_t slice_bytes,
                     int first_slice, int slices) {
  const auto found = index_.find(op);
  RLK_CHECK(found != index_.end(), op);
  const int64_t row_bytes = slice_bytes * slices;
  host_.resize(rows().size() * static_cast<size_t>(row_bytes));
  ops_.copy(nullptr, host_.data(), data, host_.size());
  ops_.synchronize(nullptr);
  TraceRecord r;
  r.step = step_;
  r.phase = phase_ == TracePhase::train_forward && op[0] == 'd' && op[1] == '_'
                ? TracePhase::backward
                : phase_;
  r.op = found->second;
  r.layer = static_cast<int16_t>(layer);
  for (size_t t = 0; t < rows().size(); ++t) {
    if (rows()[t].position < 0) continue;
    r.prompt = static_cast<uint32_t>(rows()[t].prompt);
    r.sample = rows()[t].in_prefix && r.phase != TracePhase::backward
                   ? kNoSequence
                   : static_cast<uint32_t>(rows()[t].sample);
    r.position = rows()[t].position;
    for (int s = 0; s < slices; ++s) {
      r.slice = static_cast<int8_t>(first_slice < 0 ? -1 : first_slice + s);
      r.hash = hash_bytes(host_.data() + t * row_bytes + s * slice_bytes,
                          static_cast<size_t>(slice_bytes), 0);
      writer_.record(r);
    }
  }
}

}  // namespace rlk
