
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/run/trace.h"
#include "trace_format.h"

namespace rlk {
namespace {

constexpr size_t kBufferedRecords = 1 << 15;  // 1 MiB

void put_u32(std::string* to, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) to->push_back(static_cast<char>(value >> shift));
}

}  // namespace

const char* trace_phase_name(TracePhase phase) {
  constexpr const char* kNames[kTracePhases] = {
      "weights", "rollout", "score", "reference", "train forward", "backward", "optimizer"};
  const auto index = static_cast<size_t>(phase);
  RLK_CHECK(index < kTracePhases, index);
  return kNames[index];
}

TraceWriter::TraceWriter(const std::filesystem::path& run_dir, int rank,
                         const std::vector<std::string>& ops)
    : path_(run_dir / "trace" / ("rank-" + std::to_string(rank) + ".bin")) {
  std::filesystem::create_directories(path_.parent_path());
  std::string header = kTraceMagic;
  for (const size_t value : {size_t{kTraceFormat}, sizeof(TraceRecord), size_t(rank), ops.size()})
    put_u32(&header, static_cast<uint32_t>(value));
  for (const std::string& name : ops) {
    put_u32(&header, static_cast<uint32_t>(name.size()));
    header += name;
  }
  write_file_atomic(path_, header);
  buffer_.reserve(kBufferedRecords);
}

TraceWriter::~TraceWriter() {
  try {
    flush();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): documented; a destructor does not throw
  }
}

void TraceWriter::record(const TraceRecord& record) {
  buffer_.push_back(record);
  if (buffer_.size() == kBufferedRecords) flush();
}

void TraceWriter::flush() {
  if (buffer_.empty()) return;
  const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()),
                               buffer_.size() * sizeof(TraceRecord));
  append_file(path_, bytes);
  buffer_.clear();
}

}  // namespace rlk
