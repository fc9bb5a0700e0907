// attention (R4) on the CPU.
//
// A work item is up to kBlock query rows of one segment and KV head (positions outermost, then the
// group's heads). It walks the keys in tiles of 128 from position 0 and splits of 1024. Scores:
// lanes are keys, each score an fp32 fma chain over Dh ascending. P V: lanes are columns of Dh,
// each a chain over keys ascending. A key that a row may not see is never multiplied: its loop ends
// at the row's own last key, so K/V beyond it may hold anything.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention_tiles.h"
#include "entries.h"
#include "parallel.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

constexpr int kSplitTiles = 8;  // 1024 keys
constexpr float kMaxLag =
    8.f;  // exp2 units by which a tile must exceed the running maximum to move it

// The state of one query row: of the current split, and of the merged splits before it.
struct RowState {
  float m, M, L;
  float l[8];  // of keys k = i mod 8
};

struct Item {
  const AttentionSegment* segment;
  int kv_head;
  int first, rows;  // query rows of the segment's (position, group head) list
};

class BlockOfRows {
 public:
  BlockOfRows(const AttentionArgs& g, const Item& item)
      : g_(g), item_(item), group_(g.H / g.KH), exp2_scale_(g.scale * 1.44269502f) {
    const size_t rows = static_cast<size_t>(kBlock), Dh = static_cast<size_t>(g.Dh);
    q_ = scratch(0, rows * Dh);
    k_ = scratch(1, Dh * kTileKeys);
    v_ = scratch(2, Dh * kTileKeys);
    p_ = scratch(3, rows * kTileKeys);
    split_o_ = scratch(4, rows * Dh);
    merged_o_ = scratch(5, rows * Dh);
  }

  void run() {
    for (int r = 0; r < item_.rows; ++r) widen_row(g_.q + query(r) * g_.Dh, g_.Dh, q_ + r * g_.Dh);
    const int last = position(item_.rows - 1);
    for (int tile = 0; tile * kTileKeys <= last; ++tile) {
      const int key0 = tile * kTileKeys;
      const int first_row = rows_before(key0);  // rows that see none of this tile
      if (tile % kSplitTiles == 0) open_split(first_row);
      const int keys = std::min(kTileKeys, last + 1 - key0);
      pack_tile(key0, keys);
      scores(first_row, key0);
      for (int r = first_row; r < item_.rows; ++r) softmax(r, keys_seen(r, key0));
      accumulate(first_row, key0);
      if (tile % kSplitTiles == kSplitTiles - 1) close_split(tile, first_row);
    }
    for (int r = 0; r < item_.rows; ++r) {
      // Rows whose last split is still open: those that end inside it.
      if (position(r) % kSplitKeys != kSplitKeys - 1) merge_row(r, position(r) / kSplitKeys == 0);
      finish(r);
    }
  }

 private:
  static constexpr int kSplitKeys = kSplitTiles * kTileKeys;

  int position(int r) const { return item_.segment->position + (item_.first + r) / group_; }
  int64_t query(int r) const {
    const int i = item_.first + r;
    return int64_t{item_.segment->row + i / group_} * g_.H + item_.kv_head * group_ + i % group_;
  }
  int keys_seen(int r, int key0) const { return std::clamp(position(r) + 1 - key0, 0, kTileKeys); }
  // Number of rows whose position is below `key`; positions ascend.
  int rows_before(int key) const {
    const int64_t positions = std::max(0, key - item_.segment->position);
    return static_cast<int>(std::clamp<int64_t>(positions * group_ - item_.first, 0, item_.rows));
  }

  void open_split(int first_row) {
    for (int r = first_row; r < item_.rows; ++r) {
      state_[r].m = -std::numeric_limits<float>::infinity();
      std::fill(std::begin(state_[r].l), std::end(state_[r].l), 0.f);
    }
    std::memset(split_o_ + first_row * g_.Dh, 0,
                static_cast<size_t>((item_.rows - first_row) * g_.Dh) * sizeof(float));
  }

  void pack_tile(int key0, int keys) {
    const bf16* k[kTileKeys];
    for (int i = 0; i < keys; ++i) {
      const KeyRow row = key_row(g_.cache, item_.segment->seq, key0 + i, item_.kv_head);
      k[i] = row.k;
      widen_row(row.v, g_.Dh, v_ + i * g_.Dh);
    }
    transpose_rows(k, keys, g_.Dh, k_);
  }

  void scores(int first_row, int key0) {
    for (int r = first_row; r < item_.rows; r += kTileRows) {
      const int n = std::min(kTileRows, item_.rows - r);
      dot_tile(n, q_ + r * g_.Dh, g_.Dh, k_, keys_seen(r + n - 1, key0), p_ + r * kTileKeys);
    }
  }

  // Turns row r's `keys` scores into P (rounded to bf16), moving its maximum and sums.
  void softmax(int r, int keys) {
    float* p = p_ + r * kTileKeys;
    RowState& s = state_[r];
    for (int i = keys; i < (keys + 7) / 8 * 8; ++i) p[i] = -std::numeric_limits<float>::infinity();
    F8 top = load8(p);
    for (int i = 8; i < keys; i += 8) top = _mm256_max_ps(top, load8(p + i));
    const float t = max8(top) * exp2_scale_;
    F8 l = load8(s.l);
    if (t > s.m + kMaxLag) {
      const float rescale = exp2_1(s.m - t);
      s.m = t;
      l = mul8(l, all8(rescale));
      float* o = split_o_ + r * g_.Dh;
      for (int d = 0; d < g_.Dh; d += 8) store8(o + d, mul8(load8(o + d), all8(rescale)));
    }
    const F8 shift = all8(s.m == -std::numeric_limits<float>::infinity() ? 0.f : -s.m);
    for (int i = 0; i < keys; i += 8) {
      const F8 e = exp2_8(fma8(load8(p + i), all8(exp2_scale_), shift));
      l = add8(l, e);
      store8(p + i, round_bf16(e));
    }
    store8(s.l, l);
  }

  void accumulate(int first_row, int key0) {
    for (int r = first_row; r < item_.rows; r += kTileRows) {
      const int n = std::min(kTileRows, item_.rows - r);
      int seen[kTileRows];
      for (int i = 0; i < n; ++i) seen[i] = keys_seen(r + i, key0);
      weighted_rows<false>(n, p_ + r * kTileKeys, kTileKeys, v_, g_.Dh, kFromFirst, seen,
                           split_o_ + r * g_.Dh);
    }
  }

  void close_split(int tile, int first_row) {
    const bool first = tile < kSplitTiles;
    for (int r = first_row; r < item_.rows; ++r)
      if (position(r) >= (tile + 1) * kTileKeys - 1) merge_row(r, first);
  }

  void merge_row(int r, bool first) {
    RowState& s = state_[r];
    float* o = merged_o_ + r * g_.Dh;
    const float* from = split_o_ + r * g_.Dh;
    const float l = sum8(load8(s.l));
    if (first) {
      s.M = s.m;
      s.L = l;
      std::memcpy(o, from, static_cast<size_t>(g_.Dh) * sizeof(float));
      return;
    }
    const float M = std::max(s.M, s.m);
    const float a = exp2_1(s.M - M), b = exp2_1(s.m - M);
    s.M = M;
    s.L = std::fma(l, b, s.L * a);
    for (int d = 0; d < g_.Dh; d += 8)
      store8(o + d, fma8(load8(from + d), all8(b), mul8(load8(o + d), all8(a))));
  }

  void finish(int r) {
    const RowState& s = state_[r];
    const F8 reciprocal = all8(1.f / s.L);
    bf16* o = g_.o + query(r) * g_.Dh;
    for (int d = 0; d < g_.Dh; d += 8)
      store8(o + d, mul8(load8(merged_o_ + r * g_.Dh + d), reciprocal));
    if (g_.lse) g_.lse[query(r)] = s.M + log2_1(s.L);
  }

  const AttentionArgs& g_;
  const Item item_;
  const int group_;
  const float exp2_scale_;
  float *q_, *k_, *v_, *p_, *split_o_, *merged_o_;
  RowState state_[kBlock];
};

}  // namespace

void attention(Stream, const AttentionArgs& g) {
  require_attention("attention", g.H, g.KH, g.Dh);
  std::vector<Item> items;
  for (int s = 0; s < g.n_segments; ++s)
    for (int h = 0; h < g.KH; ++h) {
      const int rows = g.segments[s].len * (g.H / g.KH);
      for (int first = 0; first < rows; first += kBlock)
        items.push_back({&g.segments[s], h, first, std::min(kBlock, rows - first)});
    }
  for_each_part(static_cast<int64_t>(items.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) BlockOfRows(g, items[static_cast<size_t>(i)]).run();
  });
}

}  // namespace rlk::cpu
