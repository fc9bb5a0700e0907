#pragma once
// Widening bf16 operands to fp32 scratch: rows as they are, and panels of 16 rows transposed to
// [column][16].

#include <cstdint>

#include "simd.h"

namespace rlk::cpu {

inline constexpr int kPanel = 16;

inline void widen_row(const bf16* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(to + i, load8(from + i));
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

// Transposes 16 rows x 8 columns of bf16 into to[column][row], fp32.
inline void transpose_16x8(const bf16* const (&rows)[kPanel], int64_t column, float* to) {
  // Lower lanes take rows 0-3 and 8-11, upper lanes 4-7 and 12-15: after three interleavings and
  // the widening one, a register holds eight neighbouring rows.
  I8 r[8];
  for (int i = 0; i < 8; ++i) {
    const int low = i < 4 ? i : i + 4;
    const auto load = [&](int j) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + column));
    };
    r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load(low)), load(low + 4), 1);
  }
  I8 s[8];  // rows 2i, 2i+1 interleaved, columns 0-3 and 4-7
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[i + 4] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  I8 t[8];  // four rows, columns 2i, 2i+1
  for (int i = 0; i < 2; ++i) {
    t[4 * i] = _mm256_unpacklo_epi32(s[4 * i], s[4 * i + 1]);
    t[4 * i + 1] = _mm256_unpackhi_epi32(s[4 * i], s[4 * i + 1]);
    t[4 * i + 2] = _mm256_unpacklo_epi32(s[4 * i + 2], s[4 * i + 3]);
    t[4 * i + 3] = _mm256_unpackhi_epi32(s[4 * i + 2], s[4 * i + 3]);
  }
  const I8 zero = _mm256_setzero_si256();
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const I8 even = _mm256_unpacklo_epi64(t[4 * i + j], t[4 * i + j + 2]);
      const I8 odd = _mm256_unpackhi_epi64(t[4 * i + j], t[4 * i + j + 2]);
      float* at = to + (4 * i + 2 * j) * kPanel;
      _mm256_store_ps(at, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, even)));
      _mm256_store_ps(at + 8, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, even)));
      _mm256_store_ps(at + 16, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, odd)));
      _mm256_store_ps(at + 24, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, odd)));
    }
  }
}

// n rows of `width` (% 8 == 0) bf16 into panels of 16: to[panel][column][row]. The last panel is
// filled up with its first row; nobody reads those columns.
inline void transpose_rows(const bf16* const* row, int n, int64_t width, float* to) {
  for (int first = 0; first < n; first += kPanel, to += kPanel * width) {
    const bf16* rows[kPanel];
    for (int i = 0; i < kPanel; ++i) rows[i] = row[first + i < n ? first + i : first];
    for (int64_t column = 0; column < width; column += 8)
      transpose_16x8(rows, column, to + column * kPanel);
  }
}

}  // namespace rlk::cpu
