#pragma once
// Collectives over a group of ranks (a subgroup of the run's world). One Communicator per group and
// rank, made once at start, used by one thread. Every wait is bounded: a deadline that passes, a
// raised abort flag or a signature that differs between ranks (kind, bytes, sequence number) throws
// Error naming rank, group, collective and sequence number.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/device/ops.h"

namespace rlk {

// A wait that ended because another rank, or the launcher, aborted the run: never the run's first
// failure.
class AbortError : public Error {
 public:
  using Error::Error;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }  // index in the group
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // world ranks, ascending

  virtual void barrier(Stream) = 0;

  // A barrier of the hosts alone, with their longer deadline: where members may come minutes apart.
  // The device must have finished what others will look at.
  virtual void meet() { barrier(nullptr); }

  // out [size][bytes] = every rank's `bytes` bytes of `in`, in group order. `in` may be the own
  // slot of `out`.
  virtual void all_gather(Stream, const void* in, void* out, size_t bytes) = 0;

  // out[i] = aligned fp32 tree over the ranks' partial[i]; bf16 output rounds once. Same bits on
  // every rank. Group sizes 1, 2, 4, 8. out may alias partial when out_f32.
  virtual void tree_reduce(Stream, const float* partial, void* out, int64_t n, bool out_f32) = 0;

  virtual void broadcast(Stream, void* data, size_t bytes, int root) = 0;

  // The address here of what group member `member` holds at the same place of its shared arena as
  // `mine` has in this rank's (ranks allocate from their arenas in the same order). Reads need a
  // barrier after the owner's writes.
  virtual void* peer(int member, const void* mine) const = 0;

 protected:
  Communicator(int rank, std::vector<int> members) : rank_(rank), members_(std::move(members)) {}
  int rank_;
  std::vector<int> members_;
};

}  // namespace rlk
