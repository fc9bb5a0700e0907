#pragma once
// Context parallelism in training: every rank computes K and V of its own tokens and needs
// everybody's (R4: CP never changes the arithmetic, it moves rows). Forward: gathered into this
// rank's pages. Backward: gathered into whole sequences.
//
// Borrows everything; made anew for every super-batch.

#include <cstdint>
#include <vector>

#include "rlk/model/forward.h"

namespace rlk {

// Which rows the ranks of the CP group hold. Device-accessible arrays, one per member.
struct CpMap {
  int64_t T = 0;                         // rows of every rank, padding included
  int64_t S = 0;                         // rows of all sequences, one after the other
  std::vector<const int32_t*> seq;       // [T] page-table row, -1 padding
  std::vector<const int32_t*> position;  // [T]
  std::vector<const int32_t*> row;       // [T] row among the S, -1 padding
  const int32_t* seq_begin = nullptr;    // [sequences + 1]
};

// Whole sequences, this rank's heads: what attention's backward passes read.
struct SequenceActs {
  bf16 *q, *k, *v, *d_o;
  float *lse, *delta;
};
int64_t sequence_acts_bytes(const ModelConfig&, int64_t S, int slices);
SequenceActs sequence_acts_at(void* base, const ModelConfig&, int64_t S, int slices);

class CpExchange {
 public:
  // gathered: exchange_bytes() bytes.
  CpExchange(const Context& ctx, Communicator& cp, CpMap map, int slices, void* gathered)
      : ctx_(ctx), cp_(cp), map_(std::move(map)), slices_(slices), gathered_(gathered) {}

  static int64_t gathered_bytes(const ModelConfig&, int64_t T, int slices, int cp);

  // Pages of every sequence from all ranks' a.k, a.v.
  void publish(const LayerActs& a, const KvCache& cache) const;
  // q, k, v, lse of `a`, d_o [T, H, Dh] and delta [T, H] of all ranks into `to`. d_o and delta must
  // lie together as pair_at() lays them out.
  void collect(const LayerActs& a, const bf16* d_o, const float* delta,
               const SequenceActs& to) const;

  struct Pair {
    bf16* d_o;
    float* delta;
  };
  static int64_t pair_bytes(const ModelConfig&, int64_t T, int slices);
  static Pair pair_at(void* base, const ModelConfig&, int64_t T, int slices);

  const CpMap& map() const { return map_; }

 private:
  // All ranks' copies of [begin, end): member m's starts at the result + m * (end - begin).
  const char* gather(const void* begin, int64_t bytes) const;
  void place(const void* rows, void* to, int member, int64_t row_bytes) const;

  const Context& ctx_;
  Communicator& cp_;
  CpMap map_;
  int slices_;
  void* gathered_;
};

}  // namespace rlk
