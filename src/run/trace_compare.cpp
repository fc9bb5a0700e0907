#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>

#include "rlk/base/error.h"
#include "rlk/run/trace.h"
#include "trace_format.h"

namespace rlk {
namespace {

constexpr uint32_t kMaxOps = 4096;
constexpr uint32_t kMaxOpName = 256;
constexpr size_t kReadRecords = 1 << 14;

// One rank's file, read front to back.
class TraceFile {
 public:
  explicit TraceFile(const std::filesystem::path& path)
      : path_(path), file_(std::fopen(path.c_str(), "rbe"), &std::fclose) {
    if (!file_) throw InputError(path_.string(), std::strerror(errno));
    read_header();
    fill();
  }

  const std::vector<std::string>& ops() const { return ops_; }
  bool at_end() const { return next_ == records_.size(); }
  uint32_t step() const { return records_[next_].step; }  // REQUIRES: !at_end()

  // Appends all records of `step`, which must be the next one or absent.
  void take(uint32_t step, std::vector<TraceRecord>* to) {
    while (!at_end() && records_[next_].step == step) {
      to->push_back(records_[next_++]);
      if (at_end()) fill();
    }
    if (!at_end() && records_[next_].step < step) fail("steps run backwards");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(path_.string(), what); }

  void read(void* to, size_t bytes) {
    if (std::fread(to, 1, bytes, file_.get()) != bytes) fail("ends inside the header");
  }

  uint32_t read_u32() {
    uint32_t value = 0;
    read(&value, sizeof value);
    return value;
  }

  void read_header() {
    std::array<char, 8> magic{};
    read(magic.data(), magic.size());
    if (std::memcmp(magic.data(), kTraceMagic, magic.size()) != 0) fail("is no trace");
    const uint32_t format = read_u32(), record_bytes = read_u32();
    if (format != kTraceFormat || record_bytes != sizeof(TraceRecord))
      fail("has format " + std::to_string(format));
    read_u32();  // the rank: records do not depend on it
    const uint32_t count = read_u32();
    if (count > kMaxOps) fail("names " + std::to_string(count) + " ops");
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t size = read_u32();
      if (size > kMaxOpName) fail("has an op name of " + std::to_string(size) + " bytes");
      std::string name(size, '\0');
      read(name.data(), size);
      ops_.push_back(std::move(name));
    }
  }

  void fill() {
    records_.resize(kReadRecords);
    const size_t bytes =
        std::fread(records_.data(), 1, kReadRecords * sizeof(TraceRecord), file_.get());
    if (bytes % sizeof(TraceRecord) != 0) fail("ends inside a record");
    records_.resize(bytes / sizeof(TraceRecord));
    next_ = 0;
    for (const TraceRecord& r : records_)
      if (r.op >= ops_.size() || static_cast<size_t>(r.phase) >= kTracePhases)
        fail("has a record of op " + std::to_string(r.op) + ", phase " +
             std::to_string(static_cast<int>(r.phase)));
  }

  std::filesystem::path path_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
  std::vector<std::string> ops_;
  std::vector<TraceRecord> records_;
  size_t next_ = 0;
};

// Execution order within one step. Forward phases run position by position in the sense that a row
// depends on rows at its own or earlier positions alone, so (position, layer, op) puts every cause
// before its effects, in prefill and in decode. The backward runs from the last layer to the first,
// and a row's gradient depends on later positions too, so the layer comes first.
using Order = std::tuple<uint8_t, int64_t, int64_t, int64_t, uint32_t, uint32_t, int32_t, int8_t>;

Order order_of(const TraceRecord& r) {
  const auto phase = static_cast<uint8_t>(r.phase);
  switch (r.phase) {
    case TracePhase::rollout:
    case TracePhase::score:
    case TracePhase::reference:
    case TracePhase::train_forward:
      return {phase, r.position, r.layer, r.op, r.prompt, r.sample, r.position, r.slice};
    case TracePhase::backward:
      return {phase, -r.layer, r.op, 0, r.prompt, r.sample, r.position, r.slice};
    case TracePhase::weights:
    case TracePhase::optimizer:
      break;
  }
  return {phase, r.layer, r.op, 0, r.prompt, r.sample, r.position, r.slice};
}

using Kind = TraceDifference::Kind;

// A run's ranks, merged step by step.
class MergedTrace {
 public:
  MergedTrace(const std::filesystem::path& run, Kind replicas) : replicas_(replicas) {
    const std::filesystem::path folder = run / "trace";
    std::error_code error;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().extension() == ".bin") paths.push_back(entry.path());
    if (paths.empty())
      throw InputError(folder.string(), "holds no trace", "record one with --trace-ops");
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) files_.push_back(std::make_unique<TraceFile>(path));
    for (size_t i = 1; i < files_.size(); ++i)
      if (files_[i]->ops() != ops())
        throw InputError(paths[i].string(), "names other ops than " + paths[0].string());
  }

  const std::vector<std::string>& ops() const { return files_.front()->ops(); }

  // The next step that any rank has records of; none at the end.
  std::optional<uint32_t> next_step() const {
    std::optional<uint32_t> step;
    for (const auto& file : files_)
      if (!file->at_end() && (!step || file->step() < *step)) step = file->step();
    return step;
  }

  // Distinct records of `step` in execution order. Returns the first pair of replicas that
  // disagree, if any.
  std::optional<TraceDifference> take(uint32_t step, std::vector<TraceRecord>* records) {
    records->clear();
    for (const auto& file : files_) file->take(step, records);
    std::sort(records->begin(), records->end(), [](const TraceRecord& a, const TraceRecord& b) {
      const Order x = order_of(a), y = order_of(b);
      return x != y ? x < y : a.hash < b.hash;
    });
    const auto same_place = [](const TraceRecord& a, const TraceRecord& b) {
      return order_of(a) == order_of(b);
    };
    const auto split = std::adjacent_find(records->begin(), records->end(),
                                          [&](const TraceRecord& a, const TraceRecord& b) {
                                            return same_place(a, b) && a.hash != b.hash;
                                          });
    std::optional<TraceDifference> difference;
    if (split != records->end())
      difference = {replicas_, *split, ops()[split->op], split[0].hash, split[1].hash};
    records->erase(std::unique(records->begin(), records->end(), same_place), records->end());
    return difference;
  }

 private:
  Kind replicas_;
  std::vector<std::unique_ptr<TraceFile>> files_;
};

// What a record that one side alone has means.
enum class Unpaired { difference, skipped };

// First difference between two sides' records of one step, both in execution order.
std::optional<TraceDifference> first_difference(const std::vector<TraceRecord>& a,
                                                const std::vector<TraceRecord>& b,
                                                const std::vector<std::string>& ops,
                                                Unpaired unpaired, uint64_t* compared) {
  const auto difference = [&](Kind kind, const TraceRecord& at, uint64_t hash_a, uint64_t hash_b) {
    return TraceDifference{kind, at, ops[at.op], hash_a, hash_b};
  };
  for (auto x = a.begin(), y = b.begin(); x != a.end() || y != b.end();) {
    const bool x_first = y == b.end() || (x != a.end() && order_of(*x) < order_of(*y));
    const bool y_first = !x_first && (x == a.end() || order_of(*y) < order_of(*x));
    if ((x_first || y_first) && unpaired == Unpaired::difference)
      return x_first ? difference(Kind::only_in_a, *x, x->hash, 0)
                     : difference(Kind::only_in_b, *y, 0, y->hash);
    if (!x_first && !y_first) {
      if (x->hash != y->hash) return difference(Kind::value, *x, x->hash, y->hash);
      ++*compared;
    }
    if (!y_first) ++x;
    if (!x_first) ++y;
  }
  return std::nullopt;
}

std::optional<TraceDifference> earlier(std::optional<TraceDifference> x,
                                       std::optional<TraceDifference> y) {
  if (!x || !y) return x ? x : y;
  return order_of(y->at) < order_of(x->at) ? y : x;
}

std::string hex64(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

std::string TraceDifference::text() const {
  std::string where = "step " + std::to_string(at.step) + ", " + trace_phase_name(at.phase) +
                      ", layer " + std::to_string(at.layer) + ", op " + op;
  if (at.prompt != kNoSequence) where += ", prompt " + std::to_string(at.prompt);
  if (at.sample != kNoSequence) where += ", sample " + std::to_string(at.sample);
  if (at.position >= 0) where += ", position " + std::to_string(at.position);
  if (at.slice >= 0) where += ", slice " + std::to_string(at.slice);
  switch (kind) {
    case Kind::value:
      return where + ": a " + hex64(hash_a) + ", b " + hex64(hash_b);
    case Kind::only_in_a:
      return where + ": recorded in a alone";
    case Kind::only_in_b:
      return where + ": recorded in b alone";
    case Kind::replicas_in_a:
    case Kind::replicas_in_b:
      break;
  }
  return where + ": ranks of " + (kind == Kind::replicas_in_a ? "a" : "b") +
         " disagree about a value that they share: " + hex64(hash_a) + ", " + hex64(hash_b);
}

TraceComparison compare_traces(const std::filesystem::path& run_a,
                               const std::filesystem::path& run_b) {
  MergedTrace a(run_a, Kind::replicas_in_a), b(run_b, Kind::replicas_in_b);
  if (a.ops() != b.ops()) {
    throw InputError(run_b.string(), "its trace names other ops than that of " + run_a.string(),
                     "both must be recorded by the same version");
  }
  TraceComparison result;
  std::vector<TraceRecord> in_a, in_b;
  while (!result.first) {
    const std::optional<uint32_t> step_a = a.next_step(), step_b = b.next_step();
    if (!step_a && !step_b) break;
    const uint32_t step = std::min(step_a.value_or(UINT32_MAX), step_b.value_or(UINT32_MAX));
    const auto replicas_a = a.take(step, &in_a), replicas_b = b.take(step, &in_b);
    const auto values =
        first_difference(in_a, in_b, a.ops(), Unpaired::difference, &result.compared);
    result.first = earlier(earlier(replicas_a, replicas_b), values);
  }
  return result;
}

TraceComparison compare_trace_phases(const std::filesystem::path& run, TracePhase a, TracePhase b) {
  MergedTrace trace(run, Kind::replicas_in_a);
  TraceComparison result;
  std::vector<TraceRecord> records, in_a, in_b;
  while (!result.first) {
    const std::optional<uint32_t> step = trace.next_step();
    if (!step) break;
    const auto replicas = trace.take(*step, &records);
    in_a.clear();
    in_b.clear();
    for (TraceRecord r : records) {
      if (r.phase == a) in_a.push_back(r);
      if (r.phase != b) continue;
      r.phase = a;  // so that a row has the same place on both sides
      in_b.push_back(r);
    }
    result.first = earlier(
        replicas, first_difference(in_a, in_b, trace.ops(), Unpaired::skipped, &result.compared));
  }
  if (result.compared == 0 && !result.first) {
    throw InputError(run.string(), std::string("its trace has no row of both ") +
                                       trace_phase_name(a) + " and " + trace_phase_name(b));
  }
  return result;
}

}  // namespace rlk
