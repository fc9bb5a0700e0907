#pragma once
// Eight floats at a time: loads and stores of bf16, fixed-order sums, and rlk's own elementary
// functions.
//
// Only IEEE operations (+, *, /, sqrt, fma) and integer operations: no reciprocal estimates, whose
// bits differ between makers of x86-64-v3 machines, and no libm. The host is compiled with
// -ffp-contract=off, so a multiply and an add fuse only where fma() is written. Stateless; every
// function depends on its lane alone unless it says sum.

#include <immintrin.h>

#include <cstdint>

#include "rlk/base/bf16.h"

namespace rlk::cpu {

using F8 = __m256;
using I8 = __m256i;

inline F8 zero8() {
  return _mm256_setzero_ps();
}
inline F8 all8(float x) {
  return _mm256_set1_ps(x);
}
inline I8 all8(int32_t x) {
  return _mm256_set1_epi32(x);
}
inline F8 load8(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store8(float* p, F8 x) {
  _mm256_storeu_ps(p, x);
}
inline F8 fma8(F8 a, F8 b, F8 c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F8 add8(F8 a, F8 b) {
  return _mm256_add_ps(a, b);
}
inline F8 sub8(F8 a, F8 b) {
  return _mm256_sub_ps(a, b);
}
inline F8 mul8(F8 a, F8 b) {
  return _mm256_mul_ps(a, b);
}
inline F8 div8(F8 a, F8 b) {
  return _mm256_div_ps(a, b);
}
inline F8 neg8(F8 a) {
  return _mm256_xor_ps(a, all8(-0.f));
}
inline F8 select8(F8 mask, F8 yes, F8 no) {
  return _mm256_blendv_ps(no, yes, mask);
}

// The first n lanes (0..8) set.
inline I8 first_lanes(int n) {
  return _mm256_cmpgt_epi32(all8(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F8 widen(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline F8 load8(const bf16* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// to_bf16 of eight values (bf16.h): nearest, ties to even; a NaN stays a quiet NaN with its sign.
inline __m128i narrow(F8 x) {
  const I8 u = _mm256_castps_si256(x);
  const I8 odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), all8(1));
  const I8 rounded =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, all8(0x7fff))), 16);
  const I8 quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), all8(0x40));
  const I8 is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const I8 r = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
inline void store8(bf16* p, F8 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x));
}
inline F8 round_bf16(F8 x) {
  return widen(narrow(x));
}

// Sum of the lanes: ((0+1)+(2+3))+((4+5)+(6+7)).
inline float sum8(F8 x) {
  const F8 pairs = _mm256_hadd_ps(x, x);  // 0+1 2+3 .. | 4+5 6+7 ..
  const F8 quads = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}

inline float max8(F8 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

inline float first8(F8 x) {
  return _mm256_cvtss_f32(x);
}

// ---- Elementary functions (docs/numerics.md: errors)

// p * 2^n for integral n in [-252, 254]: in two steps, so that results below the normal range round
// once.
inline F8 scale_by_power(F8 p, I8 n) {
  const I8 half = _mm256_srai_epi32(n, 1);
  const I8 rest = _mm256_sub_epi32(n, half);
  const auto power = [](I8 e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, all8(127)), 23));
  };
  return mul8(mul8(p, power(half)), power(rest));
}

// x inside [low, high]; a NaN passes (max and min return their second operand).
inline F8 clamp8(F8 x, float low, float high) {
  return _mm256_max_ps(all8(low), _mm256_min_ps(all8(high), x));
}

// 2^x. exp2_8(0) = 1 exactly, exp2_8(-inf) = +0, exp2_8(x >= 128) = inf.
inline F8 exp2_8(F8 x) {
  x = clamp8(x, -160.f, 130.f);
  const F8 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F8 f = sub8(x, n);  // exact
  F8 p = all8(0.000154531634f);
  p = fma8(p, f, all8(0.00133908633f));
  p = fma8(p, f, all8(0.00961808302f));
  p = fma8(p, f, all8(0.0555035695f));
  p = fma8(p, f, all8(0.240226507f));
  p = fma8(p, f, all8(0.693147182f));
  p = fma8(p, f, all8(1.f));
  return scale_by_power(p, _mm256_cvtps_epi32(n));
}

// e^x. exp8(0) = 1 exactly.
inline F8 exp8(F8 x) {
  x = clamp8(x, -110.f, 90.f);
  const F8 n =
      _mm256_round_ps(mul8(x, all8(1.44269502f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  F8 r = fma8(n, all8(-0.693115234375f),
              x);  // ln 2 in two parts: the first has 12 bits, so n * it is exact
  r = fma8(n, all8(-3.19461833e-05f), r);
  F8 q = all8(0.00139262504f);
  q = fma8(q, r, all8(0.00836323295f));
  q = fma8(q, r, all8(0.0416665524f));
  q = fma8(q, r, all8(0.166665763f));
  q = fma8(q, r, all8(0.5f));
  const F8 p = add8(fma8(q, mul8(r, r), r), all8(1.f));
  return scale_by_power(p, _mm256_cvtps_epi32(n));
}

// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]: -f^2/2 + f^3 P(f).
inline F8 log1p_tail(F8 f) {
  F8 p = all8(0.0697134659f);
  p = fma8(p, f, all8(-0.114830814f));
  p = fma8(p, f, all8(0.116870247f));
  p = fma8(p, f, all8(-0.124253601f));
  p = fma8(p, f, all8(0.142488763f));
  p = fma8(p, f, all8(-0.166678101f));
  p = fma8(p, f, all8(0.2000072f));
  p = fma8(p, f, all8(-0.24999997f));
  p = fma8(p, f, all8(0.333333313f));
  const F8 f2 = mul8(f, f);
  return fma8(mul8(p, f), f2, mul8(all8(-0.5f), f2));
}

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), for positive finite x, subnormals included.
inline void split8(F8 x, F8& e, F8& f) {
  const F8 small = _mm256_cmp_ps(x, all8(0x1p-126f), _CMP_LT_OQ);
  x = select8(small, mul8(x, all8(0x1p24f)), x);
  const I8 offset = _mm256_sub_epi32(_mm256_castps_si256(x), all8(0x3f3504f3));  // sqrt(1/2)
  const I8 exponent = _mm256_srai_epi32(offset, 23);
  const I8 mantissa = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(exponent, 23));
  f = sub8(_mm256_castsi256_ps(mantissa), all8(1.f));
  e = sub8(_mm256_cvtepi32_ps(exponent), select8(small, all8(24.f), zero8()));
}

// Limits of both logarithms: log(0) = -inf, log(inf) = inf, NaN below zero and of NaN.
inline F8 log_limits(F8 x, F8 result) {
  const F8 inf = all8(__builtin_inff());
  result = select8(_mm256_cmp_ps(x, inf, _CMP_EQ_OQ), inf, result);
  result = select8(_mm256_cmp_ps(x, zero8(), _CMP_EQ_OQ), neg8(inf), result);
  return select8(_mm256_cmp_ps(x, zero8(), _CMP_NGE_UQ), all8(__builtin_nanf("")), result);
}

inline F8 log8(F8 x) {
  F8 e, f;
  split8(x, e, f);
  const F8 tail = fma8(e, all8(3.19461833e-05f), log1p_tail(f));
  const F8 result = fma8(e, all8(0.693115234375f), add8(f, tail));
  return log_limits(x, result);
}

inline F8 log2_8(F8 x) {
  F8 e, f;
  split8(x, e, f);
  const F8 tail = log1p_tail(f);
  F8 low = mul8(add8(f, tail), all8(1.92596303e-08f));  // log2(e) = 1.44269502 + 1.926e-8
  low = fma8(tail, all8(1.44269502f), low);
  const F8 result = add8(e, fma8(f, all8(1.44269502f), low));
  return log_limits(x, result);
}

// -log((t + 0.5)/2^32), t the lanes as unsigned integers: positive and finite for every t. Near 1
// it is taken from the distance to 1, which fp32 holds, since u itself would round to 1.
inline F8 minus_log_uniform(I8 t) {
  const auto unit = [](I8 i) {  // (i + 0.5)/2^32, rounded once
    const F8 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(i, 16));
    const F8 low = add8(_mm256_cvtepi32_ps(_mm256_and_si256(i, all8(0xffff))), all8(0.5f));
    return mul8(fma8(high, all8(65536.f), low), all8(0x1p-32f));
  };
  F8 e, f;
  split8(unit(t), e, f);
  const F8 w = unit(_mm256_xor_si256(t, all8(-1)));  // 1 - u
  const F8 near_one = _mm256_cmp_ps(w, all8(0.29289322f), _CMP_LT_OQ);
  e = select8(near_one, zero8(), e);
  f = select8(near_one, neg8(w), f);
  const F8 tail = fma8(e, all8(3.19461833e-05f), log1p_tail(f));
  return neg8(fma8(e, all8(0.693115234375f), add8(f, tail)));
}

// sin and cos of 2 pi t/2^32, t the lanes as unsigned integers.
inline void sin_cos_turns(I8 t, F8& sin, F8& cos) {
  const I8 quadrant = _mm256_srli_epi32(_mm256_add_epi32(t, all8(0x20000000)), 30);
  const I8 rest = _mm256_sub_epi32(t, _mm256_slli_epi32(quadrant, 30));  // [-2^29, 2^29)
  const F8 a = mul8(_mm256_cvtepi32_ps(rest), all8(1.46291808e-09f));    // 2 pi / 2^32
  const F8 z = mul8(a, a);
  F8 s = all8(2.72499256e-06f);
  s = fma8(s, z, all8(-0.00019840087f));
  s = fma8(s, z, all8(0.00833333191f));
  s = fma8(s, z, all8(-0.166666672f));
  s = fma8(mul8(s, z), a, a);
  F8 c = all8(2.45479423e-05f);
  c = fma8(c, z, all8(-0.00138883025f));
  c = fma8(c, z, all8(0.0416666642f));
  c = fma8(mul8(c, z), z, fma8(all8(-0.5f), z, all8(1.f)));
  const F8 swap = _mm256_castsi256_ps(_mm256_slli_epi32(quadrant, 31));  // odd quadrants
  const F8 sin_sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(quadrant, 1), 31));
  const F8 cos_sign = _mm256_xor_ps(sin_sign, swap);
  const F8 minus = all8(-0.f);
  sin = _mm256_xor_ps(select8(swap, c, s), _mm256_and_ps(sin_sign, minus));
  cos = _mm256_xor_ps(select8(swap, s, c), _mm256_and_ps(cos_sign, minus));
}

// One value at a time, the same bits.
inline float exp1(float x) {
  return first8(exp8(all8(x)));
}
inline float exp2_1(float x) {
  return first8(exp2_8(all8(x)));
}
inline float log1(float x) {
  return first8(log8(all8(x)));
}
inline float log2_1(float x) {
  return first8(log2_8(all8(x)));
}

}  // namespace rlk::cpu
