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
inline constexpr int kBlock = 96;  // rows of a work item

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

// out[r][c] = chain over d of a[r][d] * b[panel][d][c], for c < columns rounded up to 16. b: panels
// of 16 columns as transpose_rows leaves them; out has kTileKeys columns.
template <int R>
void dot_rows(const float* a, int64_t Dh, const float* b, int columns, float* out) {
  for (int c = 0; c < columns; c += 16, b += 16 * Dh) {
    F8 acc[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero8();
    for (int64_t d = 0; d < Dh; ++d) {
      const F8 b0 = _mm256_load_ps(b + 16 * d), b1 = _mm256_load_ps(b + 16 * d + 8);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F8 x = _mm256_broadcast_ss(a + r * Dh + d);
        acc[r][0] = fma8(x, b0, acc[r][0]);
        acc[r][1] = fma8(x, b1, acc[r][1]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      store8(out + r * kTileKeys + c, acc[r][0]);
      store8(out + r * kTileKeys + c + 8, acc[r][1]);
    }
  }
}

inline void dot_tile(int rows, const float* a, int64_t Dh, const float* b, int columns,
                     float* out) {
  switch (rows) {
    case 1:
      return dot_rows<1>(a, Dh, b, columns, out);
    case 2:
      return dot_rows<2>(a, Dh, b, columns, out);
    case 3:
      return dot_rows<3>(a, Dh, b, columns, out);
    case 4:
      return dot_rows<4>(a, Dh, b, columns, out);
    case 5:
      return dot_rows<5>(a, Dh, b, columns, out);
    default:
      return dot_rows<6>(a, Dh, b, columns, out);
  }
}

// o[r][d] = chain from o[r][d] over i in [begin[r], end[r]) ascending of weight(r, i) * x[i][d];
// weight(r, i) is p[r*ld + i], or p[i*ld + r] when Transposed. begin null: from 0. Dh % 16 == 0.
template <int R, bool Transposed>
void weighted(const float* p, int64_t ld, const float* x, int64_t Dh, const int* begin,
              const int* end, float* o) {
  // All rows together where every row takes part; each row alone before and after that.
  int from = begin ? begin[0] : 0, to = end[0];
  for (int r = 1; r < R; ++r) {
    if (begin) from = std::max(from, begin[r]);
    to = std::min(to, end[r]);
  }
  to = std::max(from, to);
  const auto weight = [p, ld](int r, int i) { return p + (Transposed ? i * ld + r : r * ld + i); };
  for (int64_t d = 0; d < Dh; d += 16) {
    F8 acc[R][2];
    const auto alone = [&](int r, int first, int last) {
      for (int i = first; i < last; ++i) {
        const F8 w = _mm256_broadcast_ss(weight(r, i));
        acc[r][0] = fma8(w, load8(x + i * Dh + d), acc[r][0]);
        acc[r][1] = fma8(w, load8(x + i * Dh + d + 8), acc[r][1]);
      }
    };
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      acc[r][0] = load8(o + r * Dh + d);
      acc[r][1] = load8(o + r * Dh + d + 8);
    }
    if (begin)
      for (int r = 0; r < R; ++r) alone(r, begin[r], std::min(from, end[r]));
    for (int i = from; i < to; ++i) {
      const F8 x0 = load8(x + i * Dh + d), x1 = load8(x + i * Dh + d + 8);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F8 w = _mm256_broadcast_ss(weight(r, i));
        acc[r][0] = fma8(w, x0, acc[r][0]);
        acc[r][1] = fma8(w, x1, acc[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) alone(r, std::max(to, begin ? begin[r] : 0), end[r]);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      store8(o + r * Dh + d, acc[r][0]);
      store8(o + r * Dh + d + 8, acc[r][1]);
    }
  }
}

template <bool Transposed>
void weighted_rows(int rows, const float* p, int64_t ld, const float* x, int64_t Dh,
                   const int* begin, const int* end, float* o) {
  switch (rows) {
    case 1:
      return weighted<1, Transposed>(p, ld, x, Dh, begin, end, o);
    case 2:
      return weighted<2, Transposed>(p, ld, x, Dh, begin, end, o);
    case 3:
      return weighted<3, Transposed>(p, ld, x, Dh, begin, end, o);
    case 4:
      return weighted<4, Transposed>(p, ld, x, Dh, begin, end, o);
    case 5:
      return weighted<5, Transposed>(p, ld, x, Dh, begin, end, o);
    default:
      return weighted<6, Transposed>(p, ld, x, Dh, begin, end, o);
  }
}

}  // namespace rlk::cpu
