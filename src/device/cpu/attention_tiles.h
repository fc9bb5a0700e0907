#pragma once
// The register tiles that attention and its backward share. Each output is one fp32 fma chain of
// its own, ascending, whatever the shape of the tile around it.

#include <algorithm>

#include "entries.h"
#include "pack.h"
#include "simd.h"

namespace rlk::cpu {

inline constexpr int kTileKeys = 128;
inline constexpr int kTileRows = 6;
inline constexpr int kBlock = 96;                 // rows of a work item
inline constexpr int kFromFirst[kTileRows] = {};  // `begin` of rows that start at key 0

inline void require_attention(const char* op, int H, int KH, int Dh) {
  require(KH >= 1 && H >= KH && H % KH == 0 && H / KH <= 8, op, "H/KH", KH > 0 ? H / KH : 0,
          "a whole number from 1 to 8");
  require(Dh >= 16, op, "Dh", Dh, "at least 16");
  require_multiple(Dh, 16, op, "Dh");
}

struct KeyRow {
  const bf16* k;
  const bf16* v;
};

inline KeyRow key_row(const KvCache& cache, int32_t seq, int32_t position, int head) {
  const int64_t entry =
      cache.page_table[int64_t{seq} * cache.max_pages + position / cache.page_size];
  const int64_t shard = entry >> 24;
  const int64_t offset = (entry & 0xffffff) * cache.page_stride +
                         position % cache.page_size * cache.token_stride + head * cache.head_stride;
  return {cache.k[shard] + offset, cache.v[shard] + offset};
}

// R rows x P panels of 16 columns: out[r][c] = chain over d of a[r][d] * b[panel][d][c].
template <int R, int P>
void dot_panels(const float* a, int64_t Dh, const float* b, float* out) {
  F8 acc[R][2 * P];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c) acc[r][c] = zero8();
  for (int64_t d = 0; d < Dh; ++d) {
    F8 column[2 * P];
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c)
      column[c] = _mm256_load_ps(b + c / 2 * 16 * Dh + 16 * d + c % 2 * 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 x = _mm256_broadcast_ss(a + r * Dh + d);
#pragma GCC unroll 8
      for (int c = 0; c < 2 * P; ++c) acc[r][c] = fma8(x, column[c], acc[r][c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c) store8(out + r * kTileKeys + 8 * c, acc[r][c]);
}

// The first `columns` columns, rounded up to 16, of R rows; out has kTileKeys columns. Few rows
// take P panels at once, so that enough independent chains hide the latency of an fma.
template <int R, int P>
void dot_rows(const float* a, int64_t Dh, const float* b, int columns, float* out) {
  int c = 0;
  for (; c + 16 * P <= columns; c += 16 * P) dot_panels<R, P>(a, Dh, b + c * Dh, out + c);
  for (; c < columns; c += 16) dot_panels<R, 1>(a, Dh, b + c * Dh, out + c);
}

// b: panels as transpose_rows leaves them.
inline void dot_tile(int rows, const float* a, int64_t Dh, const float* b, int columns,
                     float* out) {
  switch (rows) {
    case 1:
      return dot_rows<1, 4>(a, Dh, b, columns, out);
    case 2:
      return dot_rows<2, 2>(a, Dh, b, columns, out);
    case 3:
      return dot_rows<3, 2>(a, Dh, b, columns, out);
    case 4:
      return dot_rows<4, 1>(a, Dh, b, columns, out);
    case 5:
      return dot_rows<5, 1>(a, Dh, b, columns, out);
    default:
      return dot_rows<6, 1>(a, Dh, b, columns, out);
  }
}

// weight(r, i) of the sums below: p[r*ld + i], or p[i*ld + r] when Transposed.
struct Weights {
  const float* p;
  int64_t ld;
  template <bool Transposed>
  F8 at(int r, int i) const {
    return _mm256_broadcast_ss(p + (Transposed ? i * ld + r : r * ld + i));
  }
};

// o[r][d] = chain from o[r][d] over i in [begin[r], end[r]) ascending of weight(r, i) * x[i][d],
// for C vectors of columns from d = 0. [from, to): where every row takes part; each row goes alone
// before and after it.
template <int R, int C, bool Transposed>
void weighted_columns(const Weights& w, const float* x, int64_t Dh, const int* begin,
                      const int* end, int from, int to, float* o) {
  F8 acc[R][C];
  const auto alone = [&](int r, int first, int last) {
    for (int i = first; i < last; ++i) {
      const F8 weight = w.template at<Transposed>(r, i);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = fma8(weight, load8(x + i * Dh + 8 * c), acc[r][c]);
    }
  };
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = load8(o + r * Dh + 8 * c);
    alone(r, begin[r], std::min(from, end[r]));
  }
  for (int i = from; i < to; ++i) {
    F8 column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = load8(x + i * Dh + 8 * c);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F8 weight = w.template at<Transposed>(r, i);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = fma8(weight, column[c], acc[r][c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    alone(r, std::max(to, begin[r]), end[r]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store8(o + r * Dh + 8 * c, acc[r][c]);
  }
}

// All Dh columns (% 16 == 0), C vectors at a time where they fit.
template <int R, int C, bool Transposed>
void weighted(const Weights& w, const float* x, int64_t Dh, const int* begin, const int* end,
              float* o) {
  const int from = *std::max_element(begin, begin + R),
            to = std::max(from, *std::min_element(end, end + R));
  int64_t d = 0;
  for (; d + 8 * C <= Dh; d += 8 * C)
    weighted_columns<R, C, Transposed>(w, x + d, Dh, begin, end, from, to, o + d);
  for (; d < Dh; d += 16)
    weighted_columns<R, 2, Transposed>(w, x + d, Dh, begin, end, from, to, o + d);
}

template <bool Transposed>
void weighted_rows(int rows, const float* p, int64_t ld, const float* x, int64_t Dh,
                   const int* begin, const int* end, float* o) {
  const Weights w{p, ld};
  switch (rows) {
    case 1:
      return weighted<1, 4, Transposed>(w, x, Dh, begin, end, o);
    case 2:
      return weighted<2, 4, Transposed>(w, x, Dh, begin, end, o);
    case 3:
      return weighted<3, 4, Transposed>(w, x, Dh, begin, end, o);
    case 4:
      return weighted<4, 2, Transposed>(w, x, Dh, begin, end, o);
    case 5:
      return weighted<5, 2, Transposed>(w, x, Dh, begin, end, o);
    default:
      return weighted<6, 2, Transposed>(w, x, Dh, begin, end, o);
  }
}

}  // namespace rlk::cpu
