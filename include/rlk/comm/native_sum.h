#pragma once
// Sums across a group's ranks in the order that NCCL likes: native mode's, where the strict one is
// Communicator::tree_reduce. Collective over the group; enqueues on the stream and may be captured.
// Waits are NCCL's own and unbounded: the launcher ends ranks that wait for one that failed.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rlk/comm/communicator.h"

namespace rlk {

class NativeSum {
 public:
  virtual ~NativeSum() = default;
  // data[i] becomes the sum of the ranks' data[i].
  virtual void add(Stream, bf16* data, int64_t n) = 0;
  virtual void add(Stream, float* data, int64_t n) = 0;
  // out [size][bytes] = every rank's `bytes` bytes of `in`: what `rlk bench` times its own beside.
  virtual void all_gather(Stream, const void* in, void* out, size_t bytes) = 0;
};

// Between the current devices of `host`'s members, which must be different ones. Throws Error where
// libnccl.so.2 cannot be loaded.
std::unique_ptr<NativeSum> nccl_sum(Communicator& host);

}  // namespace rlk
