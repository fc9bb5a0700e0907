#pragma once
// --trace-ops: a layout-independent hash of every op's logical output, and the search for the first
// one that differs between two runs. Format: docs/formats.md, trace/rank-N.bin. Each rank owns one
// TraceWriter, used by one thread.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rlk {

enum class TracePhase : uint8_t {
  weights,
  rollout,
  score,
  reference,
  train_forward,
  backward,
  optimizer
};
const char* trace_phase_name(TracePhase);

inline constexpr uint32_t kNoSequence = 0xffffffffu;

// One op's output for one token row (or one virtual slice of it), or for one tensor slice where no
// token is meant.
struct TraceRecord {
  uint32_t step = 0;
  TracePhase phase = TracePhase::weights;
  int8_t slice = -1;   // virtual TP slice; -1 = the whole row
  uint16_t op = 0;     // index into the writer's names
  int16_t layer = -1;  // -1 before the first layer, L after the last
  uint16_t zero = 0;
  uint32_t prompt = kNoSequence,
           sample = kNoSequence;  // a prompt's shared prefix: sample kNoSequence
  int32_t position = -1;
  uint64_t hash = 0;  // rlk::hash_bytes of the bytes
};
static_assert(sizeof(TraceRecord) == 32);

class TraceWriter {
 public:
  // Creates run_dir/trace/rank-N.bin. `ops`: every op that will be recorded, in execution order
  // within a layer, the same list on every rank and in every run of this version. REQUIRES: steps
  // are recorded in ascending order.
  TraceWriter(const std::filesystem::path& run_dir, int rank, const std::vector<std::string>& ops);
  ~TraceWriter();  // writes out what is buffered; errors are lost there, so call flush() at the end
                   // of a step
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void record(const TraceRecord&);
  void flush();  // throws Error

 private:
  std::filesystem::path path_;
  std::vector<TraceRecord> buffer_;
};

// The first op whose output differs, or whose replicas differ within one run. "a" and "b" are the
// two sides of the comparison.
struct TraceDifference {
  enum class Kind { value, only_in_a, only_in_b, replicas_in_a, replicas_in_b } kind;
  TraceRecord at;  // where
  std::string op;
  uint64_t hash_a = 0, hash_b = 0;
  std::string text() const;
};

struct TraceComparison {
  std::optional<TraceDifference> first;  // in execution order
  uint64_t compared = 0;                 // distinct records found equal
};

// `rlk debug A B`: merges each run's ranks, sorts by execution order, drops replicas that agree,
// and compares step by step until the first difference. InputError when a run has no trace, a file
// is damaged, or the op tables differ.
TraceComparison compare_traces(const std::filesystem::path& run_a,
                               const std::filesystem::path& run_b);

// `rlk debug A`: the same between two forward phases of one run, by default what the rollout engine
// computed (a) against what the training engine scored (b). A record that one phase alone has is
// skipped: phases may compute different rows.
TraceComparison compare_trace_phases(const std::filesystem::path& run,
                                     TracePhase a = TracePhase::rollout,
                                     TracePhase b = TracePhase::train_forward);

}  // namespace rlk
