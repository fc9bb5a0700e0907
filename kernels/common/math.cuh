#pragma once
// The approximations of the strict paths. Two paths that must agree call the same function here.

#include <cstdint>

namespace rlk::cuda {

// exp(x) for softmax terms, x <= 0: one rounding of x*log2(e), then the hardware's 2^x (2 ulp). The relative error grows
// with -x as 2^-24 * -x*log2(e), where the term's weight in a sum shrinks as e^x. exp_term(-inf) = 0; NaN stays NaN.
__device__ inline float exp_term(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

// 1 / (1 + exp(-x)).
__device__ inline float sigmoid(float x) { return __frcp_rn(1.0f + expf(-x)); }

}  // namespace rlk::cuda
