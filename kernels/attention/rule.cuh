#pragma once
// The attention rule (docs/numerics.md, R4) and every instruction of it that rounds: decode and
// prefill share these functions, so they cannot disagree.
//
// One query row at position p sees keys 0..p, in tiles of 128 keys from position 0, tiles in splits
// of 1024 keys from position 0. c = scale * log2(e), rounded to fp32.
//   s    = one fp32 tensor-core chain over Dh, k16 steps ascending, from +0
//   per split: m = -inf, l[0..7] = 0; per tile, ascending:
//     t = max(s) * c;  if (t > m + 8) { f = ex2(m - t); m = t; } else f = 1      a decision of the
//     row alone p = ex2(fma(s, c, -m)), 0 where masked l[key mod 8] = l[key mod 8] * f, then += p,
//     keys ascending O = O * f, then += bf16(p) V, one tensor-core chain over the tile's keys, k16
//     steps ascending
//   end of split: l = ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7))
//   splits ascending, the first one copied: n = max(M, m); a = ex2(M-n); b = ex2(m-n); M = n;
//     O = fma(O_split, b, O*a); L = fma(l, b, L*a)
//   o = bf16(O * (1/L));  lse = M + lg2(L)
// A scale of exactly 1 and a product with exactly 0 change nothing, so both may be skipped.

#include <cstdint>

#include "kernels/attention/launchers.h"
#include "kernels/common/ptx.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/common/wgmma.cuh"

namespace rlk::cuda::attn {

inline constexpr int kTile = 128;      // keys
inline constexpr int kSplitTiles = 8;  // 1024 keys
static_assert(kTile == 1 << kTileShift && kTile * kSplitTiles == 1 << kSplitShift);
inline constexpr int kSplit = kTile * kSplitTiles;
inline constexpr float kThreshold = 8.0f;  // exp2 units a tile's maximum may exceed m by
inline constexpr int kRowBytes = 128;      // of a shared-memory tile: 64 bf16, the swizzle's width
inline constexpr int kPanelBytes = kTile * kRowBytes;  // 64 columns of a tile

// The stages of a shared-memory ring, as producer and consumer each walk it.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ constexpr float kMinusInf = -__builtin_huge_valf();

// ex2.approx and lg2.approx are deterministic instructions of the device; both within 2 ulp or
// 2^-22.
__device__ inline float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Over the four lanes that share a row of an accumulator.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// m after a tile whose largest raw score is `top`, and the factor f of what was accumulated before.
// m = -inf: taken unless every key of the tile is masked.
__device__ inline void move_max(float top, float c, float& m, float& f) {
  const float t = __fmul_rn(top, c);
  const bool up = t > m + kThreshold;
  f = up ? ex2(m - t) : 1.0f;
  m = up ? t : m;
}

// p = ex2(fma(s, c, base)); a row with no key yet has every s = -inf.
__device__ inline float exponent_base(float m) {
  return m == kMinusInf ? 0.0f : -m;
}

// What a thread keeps of a row half (its rows r and r + 8 of the warp's 16 are two halves): keys 8j
// + 2q and 8j + 2q + 1 are its own, so two of the row's eight partial sums.
struct RowSums {
  float m[2], f[2], l[4];
  __device__ void start_split() {
    m[0] = m[1] = kMinusInf;
    l[0] = l[1] = l[2] = l[3] = 0.0f;
  }
  __device__ float total(int half) const {
    return quad_sum(__fadd_rn(l[2 * half], l[2 * half + 1]));
  }
};

// One tile in the accumulator layout of wgmma (s[4j + 2*half + c]: row half, key 8j + 2q + c); s
// becomes p.
__device__ inline void softmax_tile(float (&s)[kTile / 2], RowSums& row, float c) {
  float base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
    for (int i = 4; i < kTile / 2; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
    move_max(quad_max(top), c, row.m[h], row.f[h]);
    base[h] = exponent_base(row.m[h]);
    row.l[2 * h] = __fmul_rn(row.l[2 * h], row.f[h]);
    row.l[2 * h + 1] = __fmul_rn(row.l[2 * h + 1], row.f[h]);
  }
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const int mine = 2 * ((i / 2) & 1) + (i & 1);
    s[i] = ex2(__fmaf_rn(s[i], c, base[mine / 2]));
    row.l[mine] = __fadd_rn(row.l[mine], s[i]);
  }
}

// Splits merged so far, of one row.
struct Merge {
  float M, L;
};
__device__ inline void merge_factors(Merge& sum, float m, float l, float& a, float& b) {
  const float n = fmaxf(sum.M, m);
  a = ex2(sum.M - n);
  b = ex2(m - n);
  sum.M = n;
  sum.L = __fmaf_rn(l, b, __fmul_rn(sum.L, a));
}
__device__ inline float merge_value(float sum, float split, float a, float b) {
  return __fmaf_rn(split, b, __fmul_rn(sum, a));
}
__device__ inline float row_lse(float M, float L) {
  return __fadd_rn(M, lg2(L));
}

// An accumulator tile as the A operand of the next product: k16 step i takes columns 16i..16i+15.
template <int kSteps>
__device__ inline void pack_operand(uint32_t (&a)[kSteps][4], const float (&p)[8 * kSteps]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) a[i][j] = round_pair(p[8 * i + 2 * j], p[8 * i + 2 * j + 1]);
}

}  // namespace rlk::cuda::attn
