#pragma once
// Device side of the collectives between GPUs of one host (src/comm/cuda). Members push into each
// other's memory and meet through flags, both over CUDA IPC mappings.
//
// A collective runs on `lanes` blocks. A lane is independent: lane c of every member exchanges
// tiles with lane c of the others, one meeting a tile. At meeting n a lane writes its tile into
// slot n mod 2 of each receiver's staging, then a flag (signature, n) at each receiver, and waits
// for everyone's flag n. Slot n mod 2 is written again at meeting n + 2, which starts after
// everyone's flag n + 1, which is set after slot n was read: so one wait a meeting is enough.
// Meeting numbers live in device memory, so that captured graphs replay. Waits end at a deadline,
// or when an earlier wait of this rank failed; the failure is written to host memory and reported
// by the next synchronize.

#include <cstddef>
#include <cstdint>

#include "rlk/device/ops.h"

namespace rlk::cuda {

inline constexpr int kMaxMembers = 8;
inline constexpr int kMaxLanes = 128;            // enough to fill the links
inline constexpr int kSharedLanes = 32;          // of all ranks of one GPU together
inline constexpr int64_t kTileBytes = 32 << 10;  // of one member in one slot

enum class Collective : uint32_t { barrier = 1, all_gather, tree_reduce, broadcast };

// A member's memory for one group, exported to the other members.
struct GroupMemory {
  // [lane][sender]: signature in the high half, meeting number in the low half. Written by the
  // sender.
  uint64_t flag[kMaxLanes][kMaxMembers];
  uint32_t meeting[kMaxLanes];   // meetings done; this member alone
  alignas(256) char staging[1];  // [lane][slot][sender][kTileBytes], as many lanes as are used
};

constexpr size_t group_memory_bytes(int members, int lanes) {
  return offsetof(GroupMemory, staging) + size_t{2} * lanes * members * kTileBytes;
}

inline constexpr uint32_t kAborted = 4;  // by the host: no wait failed, all are to end

// First failed wait of this rank. Host memory that the device writes.
struct WaitFailure {
  uint32_t set;  // 1: deadline, 2: signatures differ, 3: being written, or kAborted
  uint32_t group, kind, lane, meeting, member, seen_meeting, signature, seen_signature;
};

// What a kernel knows about the group.
struct GroupView {
  GroupMemory* memory[kMaxMembers];  // of every member, as mapped here
  int rank, size;
  int lanes;    // blocks a collective may have, the same for all members
  uint32_t id;  // names the group in failures
  WaitFailure* failure;
  uint64_t deadline_ns;
};

void collective_barrier(Stream, const GroupView&);
void collective_all_gather(Stream, const GroupView&, const void* in, void* out, size_t bytes);
void collective_tree_reduce(Stream, const GroupView&, const float* partial, void* out, int64_t n,
                            bool out_f32);
void collective_broadcast(Stream, const GroupView&, void* data, size_t bytes, int root);

}  // namespace rlk::cuda
