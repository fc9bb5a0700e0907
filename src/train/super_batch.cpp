#include "rlk/train/super_batch.h"

#include <algorithm>
#include <tuple>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr int kChunks = 16;   // two a virtual CP slice: v and 15-v, which balances causal attention
constexpr int64_t kPad = 64;  // a leaf's rows

int32_t inputs(const Sample& s) {
  return static_cast<int32_t>(s.tokens.size()) - 1;
}

int64_t padded(int64_t n) {
  return (n + kPad - 1) / kPad * kPad;
}

void add_chunk(const Sample& sample, int seq, int chunk, RankRows& rows) {
  const int64_t n = inputs(sample);
  const auto begin = static_cast<int32_t>(chunk * n / kChunks);
  const auto end = static_cast<int32_t>((chunk + 1) * n / kChunks);
  if (begin == end) return;
  rows.segments.push_back({seq, begin, end - begin, static_cast<int32_t>(rows.seq.size())});
  for (int32_t p = begin; p < end; ++p) {
    // Input p predicts token p + 1.
    if (p + 1 >= sample.prompt_len)
      rows.head_index.push_back(static_cast<int32_t>(rows.seq.size()));
    rows.seq.push_back(seq);
    rows.position.push_back(p);
  }
}

RankRows rank_rows(const std::vector<Sample>& samples, const SuperBatch& batch, int cp_index,
                   int slices) {
  RankRows rows;
  rows.leaves = rows.head_leaves = {.count = slices, .begin = {}};
  for (int leaf = 0; leaf < slices; ++leaf) {
    const int v = cp_index * slices + leaf;
    for (int i = 0; i < batch.count; ++i)
      for (int chunk : {v, kChunks - 1 - v}) add_chunk(samples[batch.first + i], i, chunk, rows);
    const int64_t end = padded(static_cast<int64_t>(rows.seq.size()));
    rows.seq.resize(end, -1);
    rows.position.resize(end, 0);
    const int64_t head_end = padded(static_cast<int64_t>(rows.head_index.size()));
    rows.head_index.resize(head_end, -1);
    rows.leaves.begin[leaf + 1] = end;
    rows.head_leaves.begin[leaf + 1] = head_end;
  }
  return rows;
}

}  // namespace

std::vector<SuperBatch> make_super_batches(const std::vector<Sample>& samples, int first, int count,
                                           int cp, int64_t token_limit) {
  std::vector<SuperBatch> batches;
  for (int next = first; next < first + count;) {
    SuperBatch batch;
    batch.first = next;
    batch.seq_begin.push_back(0);
    for (; next < first + count; ++next) {
      const int32_t n = inputs(samples[next]);
      if (batch.count > 0 && batch.seq_begin.back() + n > token_limit) break;
      batch.seq_begin.push_back(batch.seq_begin.back() + n);
      batch.max_inputs = std::max(batch.max_inputs, n);
      ++batch.count;
    }
    for (int c = 0; c < cp; ++c) {
      batch.ranks.push_back(rank_rows(samples, batch, c, kSlices / cp));
      batch.T = std::max(batch.T, static_cast<int64_t>(batch.ranks.back().seq.size()));
    }
    for (RankRows& rows : batch.ranks) {
      rows.seq.resize(batch.T, -1);
      rows.position.resize(batch.T, 0);
      // Zero rows more or less in a leaf change no bit: a chain from +0 never reaches -0.
      rows.leaves.begin[rows.leaves.count] = batch.T;
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

AttentionOrder attention_order(const RankRows& rows) {
  std::vector<AttentionSegment> pieces = rows.segments;
  std::sort(pieces.begin(), pieces.end(), [](const AttentionSegment& a, const AttentionSegment& b) {
    return std::tie(a.seq, a.position) < std::tie(b.seq, b.position);
  });
  AttentionOrder order;
  order.to.assign(rows.seq.size(), -1);
  for (const AttentionSegment& piece : pieces) {
    const auto row = static_cast<int32_t>(order.from.size());
    auto* last = order.segments.empty() ? nullptr : &order.segments.back();
    if (last && last->seq == piece.seq && last->position + last->len == piece.position)
      last->len += piece.len;
    else
      order.segments.push_back({piece.seq, piece.position, piece.len, row});
    for (int32_t i = 0; i < piece.len; ++i) {
      order.to[piece.row + i] = row + i;
      order.from.push_back(piece.row + i);
    }
  }
  return order;
}

std::vector<LeafChunk> leaf_chunks(const Leaves& leaves, int64_t max_rows) {
  int each = leaves.count;  // leaves a chunk
  const auto longest = [&] {
    int64_t rows = 0;
    for (int l = 0; l < leaves.count; l += each)
      rows = std::max(rows, leaves.begin[l + each] - leaves.begin[l]);
    return rows;
  };
  while (each > 1 && longest() > max_rows) each /= 2;
  std::vector<LeafChunk> chunks;
  for (int first = 0; first < leaves.count; first += each) {
    LeafChunk c{leaves.begin[first], leaves.begin[first + each], {.count = each, .begin = {}}};
    for (int l = 0; l <= each; ++l) c.leaves.begin[l] = leaves.begin[first + l] - c.begin;
    chunks.push_back(c);
  }
  return chunks;
}

}  // namespace rlk
