#pragma once
// What lies in the memfd of a ShmWorld: control block, staging of every group, one arena per rank.
// All of it starts as zeroes; pages that nobody touches cost nothing, so the tables are sized for
// the largest world.
//
// Threads: every field that two ranks touch at once is atomic; the rest is handed over by a group's
// meetings.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rlk::shm {

inline constexpr uint64_t kMagic = 0x31646c726f776b6cull;  // "lkworld1"
inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxGroups = 64;
inline constexpr size_t kNameBytes = 32;
inline constexpr size_t kReasonBytes = 1024;
inline constexpr size_t kArenaAlignment = 4096;

// A collective moves its data through staging in chunks of this size: a few fit into an L2 cache,
// and a meeting of eight processes on two cores costs about as much as copying one
// (docs/bench/cpu-collectives.csv).
inline constexpr size_t kChunkBytes = 256 << 10;
// A member's staging: two chunks (one being written, one being read) and the two slices of the
// result that it reduced.
inline constexpr size_t kStagingBytes = 2 * (kChunkBytes + kChunkBytes / 2);

enum class Kind : uint32_t { none, barrier, all_gather, tree_reduce, broadcast, group };

// What a member believes that the group is doing; equal on all members, or the collective fails.
struct Signature {
  uint64_t sequence;
  uint64_t bytes;
  Kind kind;
  uint32_t detail;  // broadcast: root; tree_reduce: 1 for fp32 output
  friend bool operator==(const Signature&, const Signature&) = default;
};

struct alignas(64) Member {
  std::atomic<uint32_t> meetings;  // meetings that this member has come to
  Signature signature[2];          // of the last two
};

struct Group {
  std::atomic<uint64_t> key;  // hash of name, members and instance; 0 = free slot
  char name[kNameBytes];
  alignas(
      64) std::atomic<uint32_t> arrived;    // arrivals of all members since the start, modulo 2^32
  alignas(64) std::atomic<uint32_t> epoch;  // futex word: 2 * completed meetings, bit 0 = the world
                                            // was aborted
  Member member[kMaxRanks];
};

struct alignas(64) Rank {
  std::atomic<uint64_t> last_call;  // for messages: kind << 56 | group slot << 48 | sequence
};

enum AbortState : uint32_t {
  kRunning = 0,
  kAborting = 1,
  kAborted = 2
};  // kAborted: the reason is readable

struct Control {
  uint64_t magic;
  uint64_t arena_bytes;  // of one rank, a multiple of kArenaAlignment
  uint32_t ranks;
  alignas(64) std::atomic<uint32_t> abort_state;
  char reason[kReasonBytes];
  Rank rank[kMaxRanks];
  Group group[kMaxGroups];
};

inline constexpr size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
inline constexpr size_t kStagingOffset = round_up(sizeof(Control), kArenaAlignment);
inline size_t group_staging_bytes(int ranks) {
  return kStagingBytes * static_cast<size_t>(ranks);
}
inline size_t arena_offset(int ranks) {
  return kStagingOffset + kMaxGroups * group_staging_bytes(ranks);
}

}  // namespace rlk::shm
