#pragma once
// --trace-ops: turns the model's op outputs into trace records (run/trace.h).

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rlk/device/ops.h"
#include "rlk/model/trace.h"
#include "rlk/run/trace.h"

namespace rlk {

class OpTrace : public Trace {
 public:
  OpTrace(const std::filesystem::path& run_dir, int rank, const Ops&);

  // Phase of the records that follow; ops of the backward pass say so by their names.
  void enter(int64_t step, TracePhase phase) {
    step_ = static_cast<uint32_t>(step);
    phase_ = phase;
  }
  void record(const char* op, int layer, const void* data, int64_t slice_bytes, int first_slice,
              int slices) override;
  void flush() { writer_.flush(); }

 private:
  TraceWriter writer_;
  const Ops& ops_;
  std::map<std::string, uint16_t> index_;
  std::vector<char> host_;
  uint32_t step_ = 0;
  TracePhase phase_ = TracePhase::rollout;
};

}  // namespace rlk
