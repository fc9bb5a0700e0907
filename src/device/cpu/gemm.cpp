// gemm, gemm_dgrad, gemm_wgrad: one driver, three ways of packing.
//
// out[row, column] = aligned tree over slices of an fp32 fma chain over the slice's steps, from +0,
// ascending. The micro-kernel keeps 6 rows x 16 columns in 12 registers: lanes are columns, so that
// every output is a chain of its own and no edge, block size or thread count can change it.
// Operands are widened to fp32 once per block into thread-local scratch: B in panels of 16 columns
// [step][16], A so that six rows can be broadcast. Long contractions run in chunks: a tile's state
// (open chain and pending tree nodes) rests in memory between chunks, exactly.

#include <algorithm>
#include <cstring>

#include "entries.h"
#include "pack.h"
#include "parallel.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

constexpr int kRows = 6;                      // of a tile
constexpr int kColumns = kPanel;              // of a tile and of a B panel
constexpr int64_t kRowBlock = 96;             // rows whose A is packed at a time
constexpr int64_t kPanelFloats = 192 * 1024;  // B scratch: 768 KB of a 2 MB L2
constexpr int kTile = kRows * kColumns;
constexpr int kLevels = 4;  // open chain, then pending nodes of 1, 2 and 4 slices

// What a tile does in one chunk: a stretch of one slice.
struct Stretch {
  int64_t steps;
  bool opens;  // starts the slice: from +0
  int closes;  // ends the slice: merges this many pending nodes; -1: the slice goes on
  bool last;   // ends the last slice: the tree is complete
};

// A stretch list for steps [begin, end) of the contraction; slice s is [bound[s], bound[s+1]).
int stretches(const int64_t* bound, int slices, int64_t begin, int64_t end, Stretch* out) {
  int n = 0;
  for (int s = 0; s < slices; ++s) {
    const int64_t from = std::max(begin, bound[s]), to = std::min(end, bound[s + 1]);
    // An empty slice is opened and closed (as +0) in the one chunk that its place belongs to.
    const bool empty = bound[s] == bound[s + 1];
    const bool at_end = bound[s] == bound[slices] && end == bound[slices];
    const bool here = empty ? at_end || (begin <= bound[s] && bound[s] < end) : from < to;
    if (!here) continue;
    const bool ends = empty || to == bound[s + 1];
    out[n++] = {empty ? 0 : to - from, empty || from == bound[s],
                ends ? __builtin_ctz(~static_cast<unsigned>(s)) : -1, ends && s == slices - 1};
  }
  return n;
}

// Operands of a tile: six (or fewer) rows of A, P neighbouring panels of B, and each panel's state
// of kLevels * kTile floats. Strides in floats.
struct TileArgs {
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_panel;
  float* state;
};

// Chains of R rows x P panels over `steps` steps, from `at` on.
template <int R, int P, bool Interleaved>
inline void chain(F8 (&acc)[R][2 * P], const TileArgs& t, int64_t at, int64_t steps) {
  const float* a = t.a + at * (Interleaved ? kRows : 1);
  const float* b = t.b + at * kColumns;
  for (int64_t k = 0; k < steps; ++k) {
    F8 column[2 * P];
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c) column[c] = _mm256_load_ps(b + c / 2 * t.b_panel + c % 2 * 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 x = _mm256_broadcast_ss(Interleaved ? a + r : a + r * t.a_row);
#pragma GCC unroll 8
      for (int c = 0; c < 2 * P; ++c) acc[r][c] = fma8(x, column[c], acc[r][c]);
    }
    a += Interleaved ? kRows : 1;
    b += kColumns;
  }
}

// Runs the stretches on R rows x P panels. A finished tile is left at the start of its state. Few
// rows take several panels at once, so that enough independent chains hide the latency of an fma.
template <int R, int P, bool Interleaved>
void tile(const TileArgs& t, const Stretch* list, int n) {
  const auto at = [&t](int level, int r, int c) {
    return t.state + c / 2 * kLevels * kTile + level * kTile + r * kColumns + c % 2 * 8;
  };
  F8 acc[R][2 * P];
  int64_t step = 0;
  for (int i = 0; i < n; step += list[i++].steps) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < 2 * P; ++c)
        acc[r][c] = list[i].opens ? zero8() : _mm256_load_ps(at(0, r, c));
    chain<R, P, Interleaved>(acc, t, step, list[i].steps);
    for (int level = 1; level <= list[i].closes; ++level)
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < 2 * P; ++c)
          acc[r][c] = add8(_mm256_load_ps(at(level, r, c)), acc[r][c]);
    const int level = list[i].closes >= 0 && !list[i].last ? list[i].closes + 1 : 0;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < 2 * P; ++c) _mm256_store_ps(at(level, r, c), acc[r][c]);
  }
}

// Panels that a tile of `rows` rows takes at once.
int panels_at_once(int rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

template <bool Interleaved>
void run_tile(int rows, bool alone, const TileArgs& t, const Stretch* list, int n) {
  switch (rows) {
    case 1:
      return alone ? tile<1, 1, Interleaved>(t, list, n) : tile<1, 4, Interleaved>(t, list, n);
    case 2:
      return alone ? tile<2, 1, Interleaved>(t, list, n) : tile<2, 2, Interleaved>(t, list, n);
    case 3:
      return alone ? tile<3, 1, Interleaved>(t, list, n) : tile<3, 2, Interleaved>(t, list, n);
    case 4:
      return tile<4, 1, Interleaved>(t, list, n);
    case 5:
      return tile<5, 1, Interleaved>(t, list, n);
    default:
      return tile<6, 1, Interleaved>(t, list, n);
  }
}

// Where a panel's columns lie: `width` (8 or 16) of them, from element `out` of an output row.
struct Panel {
  int group;
  int64_t column;  // inside the group
  int width;
};

// One GEMM, seen by the driver. Interleaved: A is packed [step][6] per six rows, else [row][step].
struct Problem {
  int64_t rows, panels;
  const int64_t* bound;  // [slices + 1]
  int slices;
  void* out;
  int64_t ld;
  bool out_f32;
};

void store_tile(const Problem& p, const float* state, int64_t row0, int rows, int64_t at,
                int width) {
  for (int r = 0; r < rows; ++r) {
    const int64_t offset = at + (row0 + r) * p.ld;
    for (int c = 0; c < width; c += 8) {
      const F8 x = _mm256_load_ps(state + r * kColumns + c);
      if (p.out_f32)
        store8(static_cast<float*>(p.out) + offset + c, x);
      else
        store8(static_cast<bf16*>(p.out) + offset + c, x);
    }
  }
}

// Rows x panels of a problem on this thread. Packer: how operands lie in memory.
template <class Packer>
class Block {
 public:
  Block(const Problem& p, const Packer& packer)
      : p_(p), packer_(packer), first_(p.bound[0]), last_(p.bound[p.slices]) {
    chunk_ = std::clamp<int64_t>(last_ - first_, 1, Packer::kChunk);
    chunks_ = std::max<int64_t>(1, (last_ - first_ + chunk_ - 1) / chunk_);
    a_row_ = chunk_ + 16;  // not a power of two: six rows in different cache sets
  }

  void run(int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
    const int64_t fitting = std::max<int64_t>(1, kPanelFloats / (chunk_ * kColumns));
    block_ = std::min(fitting, panel_end - panel_begin);
    a_ = scratch(0, static_cast<size_t>(kRowBlock * a_row_));
    b_ = scratch(1, static_cast<size_t>(block_ * chunk_ * kColumns));
    // One chunk: a tile's state is done with at once. Several: every tile of the block keeps its
    // own.
    const int64_t kept = chunks_ > 1 ? kRowBlock / kRows * block_ : block_;
    state_ = scratch(2, static_cast<size_t>(kept * kLevels * kTile));
    for (int64_t p0 = panel_begin; p0 < panel_end; p0 += block_) {
      const int64_t p1 = std::min(panel_end, p0 + block_);
      for (int64_t r0 = row_begin; r0 < row_end; r0 += kRowBlock)
        for (int64_t c = 0; c < chunks_; ++c)
          run_chunk(c, r0, std::min(row_end, r0 + kRowBlock), p0, p1,
                    chunks_ > 1 || r0 == row_begin);
    }
  }

 private:
  void run_chunk(int64_t c, int64_t r0, int64_t r1, int64_t p0, int64_t p1, bool pack_b) {
    const int64_t begin = first_ + c * chunk_, end = std::min(last_, begin + chunk_);
    Stretch list[kSlices + 1];
    const int n = stretches(p_.bound, p_.slices, begin, end, list);
    const int64_t b_panel = chunk_ * kColumns;
    if (pack_b)
      for (int64_t q = p0; q < p1; ++q) packer_.pack_b(q, begin, end, b_ + (q - p0) * b_panel);
    packer_.pack_a(r0, r1, begin, end, a_, a_row_);
    for (int64_t t = 0; r0 + t * kRows < r1; ++t) {
      const int rows = static_cast<int>(std::min<int64_t>(kRows, r1 - r0 - t * kRows));
      const float* a = a_ + t * kRows * (Packer::kInterleaved ? end - begin : a_row_);
      float* state = state_ + (chunks_ > 1 ? t * block_ * kLevels * kTile : 0);
      for (int64_t q = p0; q < p1;) {
        const int64_t panels = std::min<int64_t>(panels_at_once(rows), p1 - q);
        const bool alone = panels < panels_at_once(rows) || panels == 1;
        float* s = state + (q - p0) * kLevels * kTile;
        run_tile<Packer::kInterleaved>(rows, alone,
                                       {a, a_row_, b_ + (q - p0) * b_panel, b_panel, s}, list, n);
        for (int64_t next = q + (alone ? 1 : panels); q < next; ++q, s += kLevels * kTile) {
          if (!list[n - 1].last) continue;
          const Panel panel = packer_.panel(q);
          store_tile(p_, s, r0 + t * kRows, rows, packer_.out_offset(panel), panel.width);
        }
      }
    }
  }

  const Problem& p_;
  const Packer& packer_;
  const int64_t first_, last_;
  int64_t chunk_, chunks_, a_row_, block_ = 0;
  float *a_ = nullptr, *b_ = nullptr, *state_ = nullptr;
};

template <class Packer>
void run(const Problem& p, const Packer& packer) {
  if (p.rows == 0 || p.panels == 0) return;
  const int64_t steps = std::max<int64_t>(1, p.bound[p.slices] - p.bound[0]);
  const int64_t grain_flops = 1 << 18;  // work that repays waking a thread
  if (p.rows >= 8 * kRowBlock) {
    const int64_t blocks = (p.rows + kRows - 1) / kRows;
    for_each_part(blocks, grain_flops / (steps * p.panels * kTile) + 1,
                  [&](int64_t from, int64_t to) {
                    Block(p, packer).run(from * kRows, std::min(p.rows, to * kRows), 0, p.panels);
                  });
  } else {
    for_each_part(p.panels, grain_flops / (steps * p.rows * kColumns) + 1,
                  [&](int64_t from, int64_t to) { Block(p, packer).run(0, p.rows, from, to); });
  }
}

// ---- Packing

struct ForwardPacker {
  static constexpr bool kInterleaved = false;
  static constexpr int64_t kChunk = 2048;  // contraction steps packed at a time
  const GemmArgs& g;

  Panel panel(int64_t q) const {
    return {0, q * kColumns, static_cast<int>(std::min<int64_t>(kColumns, g.N - q * kColumns))};
  }
  int64_t out_offset(const Panel& p) const { return p.column; }

  void pack_a(int64_t r0, int64_t r1, int64_t begin, int64_t end, float* a, int64_t row) const {
    for (int64_t r = r0; r < r1; ++r)
      widen_row(g.x + r * g.ldx + begin, end - begin, a + (r - r0) * row);
  }

  void pack_b(int64_t q, int64_t begin, int64_t end, float* b) const {
    const Panel p = panel(q);
    const bool one_run = g.w_slice == g.ks;  // slices side by side: rows go on across them
    for (int64_t k = begin; k < end;) {
      const int64_t slice = k / g.ks, run_end = one_run ? end : std::min(end, (slice + 1) * g.ks);
      const bf16* rows[kColumns];
      for (int n = 0; n < kColumns;
           ++n)  // a narrow panel is filled up; its extra columns are not stored
        rows[n] = g.w + slice * g.w_slice + (p.column + (n < p.width ? n : 0)) * g.ldw +
                  (k - slice * g.ks);
      for (const int64_t start = k; k < run_end; k += 8, b += 8 * kColumns)
        transpose_16x8(rows, k - start, b);
    }
  }
};

// Copies `width` bf16 of a row into 16 floats, the rest zero.
inline void widen_panel_row(const bf16* from, int width, float* to) {
  _mm256_store_ps(to, load8(from));
  _mm256_store_ps(to + 8, width > 8 ? load8(from + 8) : zero8());
}

Panel grouped_panel(int64_t q, int64_t group_columns) {
  const int64_t per_group = (group_columns + kColumns - 1) / kColumns;
  const int64_t column = q % per_group * kColumns;
  return {static_cast<int>(q / per_group), column,
          static_cast<int>(std::min<int64_t>(kColumns, group_columns - column))};
}

struct DgradPacker {
  static constexpr bool kInterleaved = false;
  static constexpr int64_t kChunk = 2048;
  const GemmDgradArgs& g;

  Panel panel(int64_t q) const { return grouped_panel(q, g.gk); }
  int64_t out_offset(const Panel& p) const { return p.group * g.gk + p.column; }

  void pack_a(int64_t r0, int64_t r1, int64_t begin, int64_t end, float* a, int64_t row) const {
    for (int64_t r = r0; r < r1; ++r)
      widen_row(g.dy + r * g.lddy + begin, end - begin, a + (r - r0) * row);
  }

  void pack_b(int64_t q, int64_t begin, int64_t end, float* b) const {
    const Panel p = panel(q);
    for (int64_t k = begin; k < end;) {
      const int64_t slice = k / g.ns, slice_end = std::min(end, (slice + 1) * g.ns);
      const bf16* w =
          g.w + p.group * g.w_group + p.column + slice * g.w_slice + (k - slice * g.ns) * g.ldw;
      for (; k < slice_end; ++k, w += g.ldw, b += kColumns) widen_panel_row(w, p.width, b);
    }
  }
};

struct WgradPacker {
  static constexpr bool kInterleaved = true;
  static constexpr int64_t kChunk = 512;  // tokens: few, so that many panels share a packed A
  const GemmWgradArgs& g;

  Panel panel(int64_t q) const { return grouped_panel(q, g.gk); }
  int64_t out_offset(const Panel& p) const { return p.group * g.dw_group + p.column; }

  void pack_a(int64_t r0, int64_t r1, int64_t begin, int64_t end, float* a, int64_t) const {
    for (int64_t r = r0; r < r1; r += kRows) {
      float* at = a + (r - r0) * (end - begin);
      const bf16* from = g.dy + begin * g.lddy + r;
      // Eight values a load: two too many, overwritten by the next step's (the scratch has room for
      // the last).
      const int64_t whole = r + 8 <= g.N ? end : begin;
      int64_t t = begin;
      for (; t < whole; ++t, at += kRows, from += g.lddy) store8(at, load8(from));
      for (; t < end; ++t, at += kRows, from += g.lddy)
        for (int64_t i = 0; i < std::min<int64_t>(kRows, g.N - r); ++i) at[i] = to_float(from[i]);
    }
  }

  void pack_b(int64_t q, int64_t begin, int64_t end, float* b) const {
    const Panel p = panel(q);
    const bf16* x = g.x + p.group * g.gk + p.column;
    for (int64_t t = begin; t < end; ++t)
      widen_panel_row(x + t * g.ldx, p.width, b + (t - begin) * kColumns);
  }
};

void even_bounds(int64_t length, int slices, int64_t (&bound)[kSlices + 1]) {
  for (int s = 0; s <= slices; ++s) bound[s] = s * length;
}

}  // namespace

void gemm(Stream, const GemmArgs& g) {
  require(is_tree_size(g.slices), "gemm", "slices", g.slices, "1, 2, 4 or 8");
  require_multiple(g.ks, 16, "gemm", "ks");
  require_multiple(g.N, 8, "gemm", "N");
  require_multiple(g.ldx, 8, "gemm", "ldx");
  require_multiple(g.ldw, 8, "gemm", "ldw");
  require_multiple(g.ldy, 8, "gemm", "ldy");
  require(g.ks > 0, "gemm", "ks", g.ks, "positive");
  int64_t bound[kSlices + 1];
  even_bounds(g.ks, g.slices, bound);
  run({g.T, (g.N + kColumns - 1) / kColumns, bound, g.slices, g.y, g.ldy, g.out_f32},
      ForwardPacker{g});
}

void gemm_dgrad(Stream, const GemmDgradArgs& g) {
  require(is_tree_size(g.slices), "gemm_dgrad", "slices", g.slices, "1, 2, 4 or 8");
  require(g.groups >= 1, "gemm_dgrad", "groups", g.groups, "at least 1");
  require_multiple(g.ns, 16, "gemm_dgrad", "ns");
  require_multiple(g.gk, 8, "gemm_dgrad", "gk");
  require_multiple(g.lddy, 8, "gemm_dgrad", "lddy");
  require_multiple(g.ldw, 8, "gemm_dgrad", "ldw");
  require_multiple(g.lddx, 8, "gemm_dgrad", "lddx");
  require(g.ns > 0, "gemm_dgrad", "ns", g.ns, "positive");
  int64_t bound[kSlices + 1];
  even_bounds(g.ns, g.slices, bound);
  const int64_t panels = (g.gk + kColumns - 1) / kColumns * g.groups;
  run({g.T, panels, bound, g.slices, g.dx, g.lddx, g.out_f32}, DgradPacker{g});
}

void gemm_wgrad(Stream, const GemmWgradArgs& g) {
  require_leaves(g.leaves, "gemm_wgrad");
  require(g.groups >= 1, "gemm_wgrad", "groups", g.groups, "at least 1");
  require_multiple(g.N, 8, "gemm_wgrad", "N");
  require_multiple(g.gk, 8, "gemm_wgrad", "gk");
  require_multiple(g.lddy, 8, "gemm_wgrad", "lddy");
  require_multiple(g.ldx, 8, "gemm_wgrad", "ldx");
  const int64_t panels = (g.gk + kColumns - 1) / kColumns * g.groups;
  run({g.N, panels, g.leaves.begin, g.leaves.count, g.dw, g.lddw, true}, WgradPacker{g});
}

void gemm_swiglu(Stream stream, const GemmSwigluArgs& a) {
  gemm(stream, a.gemm);
  swiglu(stream, a.swiglu());
}

}  // namespace rlk::cpu
