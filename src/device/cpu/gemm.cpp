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
constexpr int64_t kChunk = 2048;              // contraction steps packed at a time
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

template <int R, bool Interleaved>
inline void chain(F8 (&acc)[R][2], const float*& a, int64_t row, const float*& b, int64_t steps) {
  for (int64_t k = 0; k < steps; ++k) {
    const F8 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
    b += kColumns;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 x = _mm256_broadcast_ss(Interleaved ? a + r : a + r * row);
      acc[r][0] = fma8(x, b0, acc[r][0]);
      acc[r][1] = fma8(x, b1, acc[r][1]);
    }
    a += Interleaved ? kRows : 1;
  }
}

template <int R>
inline void put(float* state, const F8 (&acc)[R][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_store_ps(state + r * kColumns, acc[r][0]);
    _mm256_store_ps(state + r * kColumns + 8, acc[r][1]);
  }
}

// Runs the stretches on one tile. state: kLevels * kTile floats. The finished tile, if any, is left
// in state[0].
template <int R, bool Interleaved>
void tile(const float* a, int64_t row, const float* b, const Stretch* list, int n, float* state) {
  F8 acc[R][2];
  for (int i = 0; i < n; ++i) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      acc[r][0] = list[i].opens ? zero8() : _mm256_load_ps(state + r * kColumns);
      acc[r][1] = list[i].opens ? zero8() : _mm256_load_ps(state + r * kColumns + 8);
    }
    chain<R, Interleaved>(acc, a, row, b, list[i].steps);
    for (int level = 1; level <= list[i].closes; ++level) {
      const float* left = state + level * kTile;
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        acc[r][0] = add8(_mm256_load_ps(left + r * kColumns), acc[r][0]);
        acc[r][1] = add8(_mm256_load_ps(left + r * kColumns + 8), acc[r][1]);
      }
    }
    const bool pending = list[i].closes >= 0 && !list[i].last;
    put<R>(state + (pending ? (list[i].closes + 1) * kTile : 0), acc);
  }
}

template <bool Interleaved>
void tile_rows(int rows, const float* a, int64_t row, const float* b, const Stretch* list, int n,
               float* state) {
  switch (rows) {
    case 1:
      return tile<1, Interleaved>(a, row, b, list, n, state);
    case 2:
      return tile<2, Interleaved>(a, row, b, list, n, state);
    case 3:
      return tile<3, Interleaved>(a, row, b, list, n, state);
    case 4:
      return tile<4, Interleaved>(a, row, b, list, n, state);
    case 5:
      return tile<5, Interleaved>(a, row, b, list, n, state);
    default:
      return tile<6, Interleaved>(a, row, b, list, n, state);
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

// Rows [row_begin, row_end) x panels [panel_begin, panel_end) on this thread. Packer: how operands
// lie in memory.
template <class Packer>
void run_block(const Problem& p, const Packer& packer, int64_t row_begin, int64_t row_end,
               int64_t panel_begin, int64_t panel_end) {
  constexpr bool kInterleaved = Packer::kInterleaved;
  const int64_t first = p.bound[0], last = p.bound[p.slices];
  const int64_t chunk = std::max<int64_t>(1, std::min(kChunk, last - first));
  const int64_t chunks = std::max<int64_t>(1, (last - first + chunk - 1) / chunk);
  const int64_t block =
      std::max<int64_t>(1, kPanelFloats / (chunk * kColumns));  // panels packed at a time
  const int64_t block_panels = std::min(block, panel_end - panel_begin);
  const int64_t row = chunk + 16;  // not a power of two: six rows in different cache sets
  float* a = scratch(0, static_cast<size_t>(kRowBlock * row));
  float* b = scratch(1, static_cast<size_t>(block_panels * chunk * kColumns));
  const int64_t tiles = kRowBlock / kRows;
  float* state =
      scratch(2, static_cast<size_t>((chunks > 1 ? tiles * block_panels : 1) * kLevels * kTile));
  Stretch list[kSlices + 1];
  for (int64_t p0 = panel_begin; p0 < panel_end; p0 += block) {
    const int64_t p1 = std::min(panel_end, p0 + block);
    for (int64_t r0 = row_begin; r0 < row_end; r0 += kRowBlock) {
      const int64_t r1 = std::min(row_end, r0 + kRowBlock);
      for (int64_t c = 0; c < chunks; ++c) {
        const int64_t begin = first + c * chunk, end = std::min(last, begin + chunk);
        const int n = stretches(p.bound, p.slices, begin, end, list);
        if (chunks > 1 || r0 == row_begin)
          for (int64_t q = p0; q < p1; ++q)
            packer.pack_b(q, begin, end, b + (q - p0) * chunk * kColumns);
        packer.pack_a(r0, r1, begin, end, a, row);
        for (int64_t t = 0; r0 + t * kRows < r1; ++t) {
          const int rows = static_cast<int>(std::min<int64_t>(kRows, r1 - r0 - t * kRows));
          const float* a_tile = a + t * kRows * (kInterleaved ? end - begin : row);
          for (int64_t q = p0; q < p1; ++q) {
            float* s = state + (chunks > 1 ? (t * block_panels + q - p0) * kLevels * kTile : 0);
            tile_rows<kInterleaved>(rows, a_tile, row, b + (q - p0) * chunk * kColumns, list, n, s);
            if (n > 0 && list[n - 1].last) {
              const Panel panel = packer.panel(q);
              store_tile(p, s, r0 + t * kRows, rows, packer.out_offset(panel), panel.width);
            }
          }
        }
      }
    }
  }
}

template <class Packer>
void run(const Problem& p, const Packer& packer) {
  if (p.rows == 0 || p.panels == 0) return;
  const int64_t steps = std::max<int64_t>(1, p.bound[p.slices] - p.bound[0]);
  const int64_t grain_flops = 1 << 18;  // work that repays waking a thread
  if (p.rows >= 8 * kRowBlock) {
    const int64_t blocks = (p.rows + kRows - 1) / kRows;
    for_each_part(blocks, grain_flops / (steps * p.panels * kTile) + 1,
                  [&](int64_t from, int64_t to) {
                    run_block(p, packer, from * kRows, std::min(p.rows, to * kRows), 0, p.panels);
                  });
  } else {
    for_each_part(p.panels, grain_flops / (steps * p.rows * kColumns) + 1,
                  [&](int64_t from, int64_t to) { run_block(p, packer, 0, p.rows, from, to); });
  }
}

// ---- Packing
// ----------------------------------------------------------------------------------------------------

struct ForwardPacker {
  static constexpr bool kInterleaved = false;
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
    for (int64_t k = begin; k < end; k += 8) {  // ks % 16 == 0: eight steps never straddle slices
      const int64_t slice = k / g.ks;
      const bf16* rows[kColumns] = {};
      for (int n = 0; n < p.width; ++n) rows[n] = g.w + slice * g.w_slice + (p.column + n) * g.ldw;
      transpose_16x8(rows, k - slice * g.ks, b + (k - begin) * kColumns);
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
  const GemmDgradArgs& g;

  Panel panel(int64_t q) const { return grouped_panel(q, g.gk); }
  int64_t out_offset(const Panel& p) const { return p.group * g.gk + p.column; }

  void pack_a(int64_t r0, int64_t r1, int64_t begin, int64_t end, float* a, int64_t row) const {
    for (int64_t r = r0; r < r1; ++r)
      widen_row(g.dy + r * g.lddy + begin, end - begin, a + (r - r0) * row);
  }

  void pack_b(int64_t q, int64_t begin, int64_t end, float* b) const {
    const Panel p = panel(q);
    const bf16* w = g.w + p.group * g.w_group + p.column;
    for (int64_t k = begin; k < end; ++k)
      widen_panel_row(w + k / g.ns * g.w_slice + k % g.ns * g.ldw, p.width,
                      b + (k - begin) * kColumns);
  }
};

struct WgradPacker {
  static constexpr bool kInterleaved = true;
  const GemmWgradArgs& g;

  Panel panel(int64_t q) const { return grouped_panel(q, g.gk); }
  int64_t out_offset(const Panel& p) const { return p.group * g.dw_group + p.column; }

  void pack_a(int64_t r0, int64_t r1, int64_t begin, int64_t end, float* a, int64_t) const {
    for (int64_t r = r0; r < r1; r += kRows) {
      float* at = a + (r - r0) * (end - begin);
      const int64_t n = std::min<int64_t>(kRows, g.N - r);
      for (int64_t t = begin; t < end; ++t, at += kRows) {
        const bf16* from = g.dy + t * g.lddy + r;
        for (int64_t i = 0; i < n; ++i) at[i] = to_float(from[i]);
      }
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

}  // namespace rlk::cpu
