#pragma once
// The approximations of the strict paths. Two paths that must agree call the same function here.

#include <cstdint>

namespace rlk::cuda {

// exp(x) for softmax terms, x <= 0: one rounding of x*log2(e), then the hardware's 2^x (2 ulp). The
// relative error grows with -x as 2^-24 * -x*log2(e), where the term's weight in a sum shrinks as
// e^x. exp_term(-inf) = 0; NaN stays NaN.
__device__ inline float exp_term(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

// 1 / (1 + exp(-x)).
__device__ inline float sigmoid(float x) {
  return __frcp_rn(1.0f + expf(-x));
}

// silu(gate) * up.
__device__ inline float gated(float gate, float up) {
  return gate * sigmoid(gate) * up;
}

// -log(u) with u = (bits + 0.5) * 2^-32 (R6). From u = 1/2 up it is taken of 1 - u, which fp32
// holds where u itself would round to 1.
__device__ inline float minus_log_uniform(uint32_t bits) {
  const bool upper = bits >= 0x80000000u;
  const float u = (static_cast<float>(upper ? ~bits : bits) + 0.5f) * 0x1p-32f;
  return -(upper ? log1pf(-u) : logf(u));
}

__device__ inline float gumbel(uint32_t bits) {
  return -logf(minus_log_uniform(bits));
}

// At least gumbel(bits) but for 1e-5 of its magnitude: -log(u) >= 1 - u, so gumbel(bits) <= -log(1
// - u).
__device__ inline float gumbel_bound(uint32_t bits) {
  float log2_rest;
  asm("lg2.approx.ftz.f32 %0, %1;"
      : "=f"(log2_rest)
      : "f"((static_cast<float>(~bits) + 0.5f) * 0x1p-32f));
  return log2_rest * -0.693147181f;
}

}  // namespace rlk::cuda
