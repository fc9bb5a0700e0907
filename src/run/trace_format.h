#pragma once
// Constants of trace/rank-N.bin (docs/formats.md). Records are stored as they lie in memory, so a
// trace is written and read on little-endian machines only. Private to src/run.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rlk {

inline constexpr const char* kTraceMagic = "RLKTRACE";
inline constexpr uint32_t kTraceFormat = 1;
inline constexpr size_t kTracePhases = 7;
static_assert(std::endian::native == std::endian::little);

}  // namespace rlk
