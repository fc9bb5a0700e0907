#pragma once
// fp64 elementary functions with the same bits on every machine (libm's differ between versions and
// processors). Accurate to about 1 ulp over the ranges rlk uses; for host-side scalars, not for
// kernels.

namespace rlk {

double strict_exp(double x);  // overflow to inf, underflow to 0; NaN stays NaN
double strict_log(double x);  // x > 0
void strict_sincos(double x, double* sine, double* cosine);  // |x| <= 2^24

}  // namespace rlk
