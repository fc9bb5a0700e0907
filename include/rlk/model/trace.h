#pragma once
// Where the model reports every op's output while --trace-ops is on. Implemented by the worker over
// the run directory's trace files; the model only says which logical rows a buffer holds.

#include <cstdint>
#include <utility>
#include <vector>

namespace rlk {

// A logical row: token `position` of a sample. position < 0: padding, not recorded. in_prefix:
// before the prompt's last token, where the forward pass of all the prompt's samples is one;
// engines compute it once or often.
struct TraceRow {
  int32_t prompt, sample, position;
  bool in_prefix;
};

class Trace {
 public:
  virtual ~Trace() = default;

  // The rows that the next records speak of.
  void set_rows(std::vector<TraceRow> rows) { rows_ = std::move(rows); }

  // data: rows().size() rows of `slices` pieces of slice_bytes bytes, virtual slices first_slice..
  // (replicated output: first_slice -1, one piece). Device memory; the stream has been
  // synchronised.
  virtual void record(const char* op, int layer, const void* data, int64_t slice_bytes,
                      int first_slice, int slices) = 0;

 protected:
  const std::vector<TraceRow>& rows() const { return rows_; }

 private:
  std::vector<TraceRow> rows_;
};

}  // namespace rlk
