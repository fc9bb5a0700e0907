// attention_delta and the two canonical passes of the attention backward.
//
// Both passes compute a score again exactly as the forward does (a chain over Dh), then
//   P = exp2(fma(s, scale*log2 e, -lse)),  dS = P * (dO.V - delta)
// rounded to bf16 before they meet a matrix; `scale` multiplies dQ and dK once, at the end.
// dQ of a row: one chain over keys ascending. dK, dV of a key: one chain over (query tile of 128
// from position 0, head of the group, query), ascending. What causality hides is skipped, not
// multiplied by zero.

#include <algorithm>
#include <vector>

#include "attention_tiles.h"
#include "entries.h"
#include "parallel.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

constexpr int kTileQueries = 128;

struct Item {
  const AttentionSegment* segment;
  int kv_head;
  int first, rows;  // dq: (position, group head) rows; dkv: key positions
};

std::vector<Item> items_of(const AttentionBwdArgs& g, int rows_per_position) {
  std::vector<Item> items;
  for (int s = 0; s < g.n_segments; ++s)
    for (int h = 0; h < g.KH; ++h) {
      const int rows = g.segments[s].len * rows_per_position;
      for (int first = 0; first < rows; first += kBlock)
        items.push_back({&g.segments[s], h, first, std::min(kBlock, rows - first)});
    }
  return items;
}

// scores -> P in place of s, dS in place of dp; both rounded to bf16. Columns are keys.
void probabilities(float* s, float* dp, int columns, float exp2_scale, float lse, float delta) {
  for (int i = 0; i < columns; i += 8) {
    const F8 p = exp2_8(fma8(load8(s + i), all8(exp2_scale), all8(-lse)));
    store8(dp + i, round_bf16(mul8(p, sub8(load8(dp + i), all8(delta)))));
    store8(s + i, round_bf16(p));
  }
}

void store_scaled(const float* from, int64_t n, float scale, bf16* to) {
  for (int64_t i = 0; i < n; i += 8) store8(to + i, mul8(load8(from + i), all8(scale)));
}

class QueryBlock {
 public:
  QueryBlock(const AttentionBwdArgs& g, const Item& item)
      : g_(g), item_(item), group_(g.H / g.KH), sequence_(g.seq_begin[item.segment->seq]) {}

  void run() {
    const int64_t Dh = g_.Dh;
    const size_t block = static_cast<size_t>(kBlock * Dh),
                 tile = static_cast<size_t>(kTileKeys * Dh);
    float *q = scratch(0, block), *d_o = scratch(1, block), *dq = scratch(2, block);
    float *k = scratch(3, tile), *kt = scratch(4, tile), *vt = scratch(5, tile);
    float *s = scratch(6, kTileRows * kTileKeys), *dp = scratch(7, kTileRows * kTileKeys);
    std::fill(dq, dq + block, 0.f);
    for (int r = 0; r < item_.rows; ++r) {
      widen_row(g_.q + query(r) * Dh, Dh, q + r * Dh);
      widen_row(g_.d_o + query(r) * Dh, Dh, d_o + r * Dh);
    }
    const float exp2_scale = g_.scale * 1.44269502f;
    const int last = position(item_.rows - 1);
    for (int key0 = 0; key0 <= last; key0 += kTileKeys) {
      pack(key0, std::min(kTileKeys, last + 1 - key0), k, kt, vt);
      for (int r = 0; r < item_.rows; r += kTileRows) {
        const int n = std::min(kTileRows, item_.rows - r);
        int seen[kTileRows];
        for (int i = 0; i < n; ++i) seen[i] = std::clamp(position(r + i) + 1 - key0, 0, kTileKeys);
        if (seen[n - 1] == 0) continue;
        dot_tile(n, q + r * Dh, Dh, kt, seen[n - 1], s);
        dot_tile(n, d_o + r * Dh, Dh, vt, seen[n - 1], dp);
        for (int i = 0; i < n; ++i)
          probabilities(s + i * kTileKeys, dp + i * kTileKeys, seen[i], exp2_scale,
                        g_.lse[query(r + i)], g_.delta[query(r + i)]);
        weighted_rows<false>(n, dp, kTileKeys, k, Dh, kFromFirst, seen, dq + r * Dh);
      }
    }
    for (int r = 0; r < item_.rows; ++r) {
      const int i = item_.first + r;
      const int64_t row =
          int64_t{item_.segment->row + i / group_} * g_.H + item_.kv_head * group_ + i % group_;
      store_scaled(dq + r * Dh, Dh, g_.scale, g_.dq + row * Dh);
    }
  }

 private:
  int position(int r) const { return item_.segment->position + (item_.first + r) / group_; }
  int64_t query(int r) const {
    return int64_t{sequence_ + position(r)} * g_.H + item_.kv_head * group_ +
           (item_.first + r) % group_;
  }

  void pack(int key0, int keys, float* k, float* kt, float* vt) const {
    const bf16 *k_rows[kTileKeys], *v_rows[kTileKeys];
    for (int i = 0; i < keys; ++i) {
      const int64_t at = (int64_t{sequence_ + key0 + i} * g_.KH + item_.kv_head) * g_.Dh;
      k_rows[i] = g_.k + at;
      v_rows[i] = g_.v + at;
      widen_row(k_rows[i], g_.Dh, k + i * g_.Dh);
    }
    transpose_rows(k_rows, keys, g_.Dh, kt);
    transpose_rows(v_rows, keys, g_.Dh, vt);
  }

  const AttentionBwdArgs& g_;
  const Item item_;
  const int group_;
  const int sequence_;
};

class KeyBlock {
 public:
  KeyBlock(const AttentionBwdArgs& g, const Item& item)
      : g_(g),
        item_(item),
        group_(g.H / g.KH),
        sequence_(g.seq_begin[item.segment->seq]),
        length_(g.seq_begin[item.segment->seq + 1] - sequence_),
        key0_(item.segment->position + item.first) {
    const size_t block = static_cast<size_t>(kBlock * g.Dh),
                 tile = static_cast<size_t>(kTileQueries * g.Dh);
    kt_ = scratch(0, block), vt_ = scratch(1, block);
    dk_ = scratch(2, block), dv_ = scratch(3, block);
    q_ = scratch(4, tile), d_o_ = scratch(5, tile);
    s_ = scratch(6, kTileQueries * kTileKeys), dp_ = scratch(7, kTileQueries * kTileKeys);
    std::fill(dk_, dk_ + block, 0.f);
    std::fill(dv_, dv_ + block, 0.f);
  }

  void run() {
    const bf16 *k_rows[kBlock], *v_rows[kBlock];
    for (int i = 0; i < item_.rows; ++i) {
      const int64_t at = (int64_t{sequence_ + key0_ + i} * g_.KH + item_.kv_head) * g_.Dh;
      k_rows[i] = g_.k + at;
      v_rows[i] = g_.v + at;
    }
    transpose_rows(k_rows, item_.rows, g_.Dh, kt_);
    transpose_rows(v_rows, item_.rows, g_.Dh, vt_);
    for (int q0 = key0_ / kTileQueries * kTileQueries; q0 < length_; q0 += kTileQueries)
      for (int h = 0; h < group_; ++h) add_tile(q0, std::min(kTileQueries, length_ - q0), h);
    for (int i = 0; i < item_.rows; ++i) {
      const int64_t row = int64_t{item_.segment->row + item_.first + i} * g_.KH + item_.kv_head;
      store_scaled(dk_ + i * g_.Dh, g_.Dh, g_.scale, g_.dk + row * g_.Dh);
      store_scaled(dv_ + i * g_.Dh, g_.Dh, 1.f, g_.dv + row * g_.Dh);
    }
  }

 private:
  // Adds the queries [q0, q0 + n) of one head.
  void add_tile(int q0, int n, int h) {
    const int first =
        std::max(0, key0_ - q0);  // queries before the block's first key see none of it
    const float exp2_scale = g_.scale * 1.44269502f;
    for (int i = first; i < n; ++i) {
      widen_row(g_.q + query(q0 + i, h) * g_.Dh, g_.Dh, q_ + i * g_.Dh);
      widen_row(g_.d_o + query(q0 + i, h) * g_.Dh, g_.Dh, d_o_ + i * g_.Dh);
    }
    for (int i = first; i < n; i += kTileRows) {
      const int rows = std::min(kTileRows, n - i);
      dot_tile(rows, q_ + i * g_.Dh, g_.Dh, kt_, item_.rows, s_ + i * kTileKeys);
      dot_tile(rows, d_o_ + i * g_.Dh, g_.Dh, vt_, item_.rows, dp_ + i * kTileKeys);
      for (int j = i; j < i + rows; ++j)
        probabilities(s_ + j * kTileKeys, dp_ + j * kTileKeys, item_.rows, exp2_scale,
                      g_.lse[query(q0 + j, h)], g_.delta[query(q0 + j, h)]);
    }
    for (int r = 0; r < item_.rows; r += kTileRows) {
      const int rows = std::min(kTileRows, item_.rows - r);
      int begin[kTileRows], end[kTileRows];
      for (int j = 0; j < rows; ++j) {
        begin[j] = std::clamp(key0_ + r + j - q0, 0, n);
        end[j] = n;
      }
      weighted_rows<true>(rows, s_ + r, kTileKeys, d_o_, g_.Dh, begin, end, dv_ + r * g_.Dh);
      weighted_rows<true>(rows, dp_ + r, kTileKeys, q_, g_.Dh, begin, end, dk_ + r * g_.Dh);
    }
  }

  int64_t query(int position, int h) const {
    return int64_t{sequence_ + position} * g_.H + item_.kv_head * group_ + h;
  }

  const AttentionBwdArgs& g_;
  const Item item_;
  const int group_;
  const int sequence_, length_, key0_;
  float *kt_, *vt_, *dk_, *dv_, *q_, *d_o_, *s_, *dp_;
};

}  // namespace

// Column i in lane i mod 8, ascending; lanes by the aligned tree.
void attention_delta(Stream, const AttentionDeltaArgs& g) {
  require_multiple(g.Dh, 16, "attention_delta", "Dh");
  for_each_part(g.T * g.H, 1024, [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      F8 sum = zero8();
      for (int64_t d = r * g.Dh; d < (r + 1) * g.Dh; d += 8)
        sum = fma8(load8(g.o + d), load8(g.d_o + d), sum);
      g.delta[r] = sum8(sum);
    }
  });
}

void attention_bwd_dq(Stream, const AttentionBwdArgs& g) {
  require_attention("attention_bwd_dq", g.H, g.KH, g.Dh);
  const std::vector<Item> items = items_of(g, g.H / g.KH);
  for_each_part(static_cast<int64_t>(items.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) QueryBlock(g, items[static_cast<size_t>(i)]).run();
  });
}

void attention_bwd_dkv(Stream, const AttentionBwdArgs& g) {
  require_attention("attention_bwd_dkv", g.H, g.KH, g.Dh);
  const std::vector<Item> items = items_of(g, 1);
  for_each_part(static_cast<int64_t>(items.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) KeyBlock(g, items[static_cast<size_t>(i)]).run();
  });
}

}  // namespace rlk::cpu
