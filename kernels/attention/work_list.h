#pragma once
// The list of work blocks of one attention call, made on the device (segments live there) by one
// small kernel: the segments cut at multiples of 128 positions, longest work first. Its order
// decides when a block runs, never a bit of any result. Host functions: any thread; the list lives
// in the caller's workspace.

#include <cstddef>
#include <cstdint>

#include "rlk/device/ops.h"

namespace rlk::cuda::attn {

inline constexpr int kBlock = 128;  // positions of a block, and where blocks are anchored

struct WorkHeader {
  int32_t blocks;         // entries of the list
  int32_t next;           // work items claimed beyond each CTA's first
  int32_t heads_at_once;  // KV heads whose working set fits the L2 together
  int32_t unused;
};

// An entry is a segment of at most kBlock positions that lies between two multiples of kBlock.
struct WorkList {
  WorkHeader* header;
  AttentionSegment* block;
};

// What an entry's work is measured by, and what its working set is.
enum class WorkOrder {
  keys,     // query blocks: the key tiles they see
  queries,  // key blocks: the queries that see them; needs seq_begin
};

struct WorkListArgs {
  const AttentionSegment* segments;
  int32_t n_segments;
  const int32_t* seq_begin;  // WorkOrder::queries
  WorkOrder order;
  int KH;
  int64_t bytes_per_position;  // of what a position adds to one KV head's working set
};

// T bounds the sum of the segments' lengths.
size_t work_list_bytes(int64_t T, int32_t n_segments);
WorkList work_list_at(void* workspace);
void make_work_list(Stream stream, const WorkListArgs& args, const WorkList& list);

#ifdef __CUDACC__

// The items of one CTA, for a whole warp: an entry of the list and a head (`heads_per_kv` = H / KH:
// query heads; 1: KV heads). KV heads go in groups that share the L2; inside a group longest blocks
// first, all heads of a block together.
class WorkQueue {
 public:
  AttentionSegment block;
  int head;

  __device__ WorkQueue(const WorkList& list, int KH, int heads_per_kv)
      : list_(list),
        header_(*list.header),
        KH_(KH),
        heads_per_kv_(heads_per_kv),
        total_(header_.blocks * KH * heads_per_kv) {
    take(static_cast<int>(blockIdx.x));
  }
  __device__ bool done() const { return item_ >= total_; }
  // Claims the next item, well before next() asks for it: the answer takes a microsecond.
  __device__ void claim() {
    if ((threadIdx.x & 31) == 0) claimed_ = atomicAdd(&list_.header->next, 1);
  }
  __device__ void next() {
    take(static_cast<int>(gridDim.x) + __shfl_sync(0xffffffffu, claimed_, 0));
  }

 private:
  __device__ void take(int item) {
    item_ = item;
    if (done()) return;
    const int per_group = header_.heads_at_once * heads_per_kv_ * header_.blocks;
    const int group = item / per_group, rest = item - group * per_group;
    const int first = group * header_.heads_at_once;
    const int heads = min(header_.heads_at_once, KH_ - first) * heads_per_kv_;
    block = list_.block[rest / heads];
    head = first * heads_per_kv_ + rest % heads;
  }

  WorkList list_;
  WorkHeader header_;
  int KH_, heads_per_kv_, total_, item_, claimed_;
};

#endif

}  // namespace rlk::cuda::attn
