#pragma once
// Which rank of the CP group computes which token (R7). Pure: from the samples' lengths to every
// rank's row order, leaves, attention segments and head rows. All ranks compute the same plan.

#include <cstdint>
#include <vector>

#include "rlk/data/trajectory.h"
#include "rlk/device/ops.h"

namespace rlk {

// Rows of one CP rank in leaf order: per virtual CP slice v it owns, chunks v and 15-v of every
// sample, by (prompt, sample, position), then padding to a multiple of 64.
struct RankRows {
  std::vector<int32_t> seq;       // sample index inside the super-batch, -1 padding
  std::vector<int32_t> position;  // 0 for padding
  Leaves leaves;
  std::vector<AttentionSegment> segments;
  // Rows that predict a response token, in the same order, each leaf padded to 64 with index -1.
  std::vector<int32_t> head_index;
  Leaves head_leaves;
};

struct SuperBatch {
  int first = 0, count = 0;        // samples [first, first + count) of the trajectory
  int64_t T = 0;                   // rows of every rank (the longest rank's; the rest is padding)
  std::vector<int32_t> seq_begin;  // [count + 1] inputs of all sequences, one after the other
  int32_t max_inputs = 0;
  std::vector<RankRows> ranks;  // by CP index
};

// Consecutive whole samples, closed when the next would exceed `token_limit` inputs.
std::vector<SuperBatch> make_super_batches(const std::vector<Sample>&, int first, int count, int cp,
                                           int64_t token_limit);

// A rank's rows by (sequence, position), without padding: adjacent chunks of a sequence, which lie
// in different leaves, become one segment.
struct AttentionOrder {
  std::vector<int32_t> from;  // its rows: which of the rank's each is
  std::vector<int32_t> to;    // the rank's rows: which of these each is, -1 for padding
  std::vector<AttentionSegment> segments;
};
AttentionOrder attention_order(const RankRows&);

// Rows of adjacent leaves that form one subtree of the leaves' tree.
struct LeafChunk {
  int64_t begin, end;
  Leaves leaves;  // of these rows, counted from `begin`
};

// The fewest equal subtrees of at most `max_rows` rows each; single leaves where one is longer. So
// the chunks' weight gradients, joined by the aligned tree, are the whole's.
std::vector<LeafChunk> leaf_chunks(const Leaves&, int64_t max_rows);

}  // namespace rlk
