#include "rlk/base/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace rlk {
namespace {

// ln 2 and pi/2 in two and three parts: the leading ones have trailing zero bits, so that k * part
// is exact.
constexpr double kLn2Hi = 0x1.62e42fefa0000p-1, kLn2Lo = 0x1.cf79abc9e3b3ap-40;
constexpr double kPio2Hi = 0x1.921fb50000000p+0, kPio2Mid = 0x1.110b460000000p-26,
                 kPio2Lo = 0x1.1a62633145c07p-54;

double scale_by_power_of_two(double x, int k) {
  return x * std::bit_cast<double>(static_cast<uint64_t>(1023 + k) << 52);
}

}  // namespace

double strict_exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.78) return std::numeric_limits<double>::infinity();
  if (x < -708.0) return 0.0;
  const double k = std::nearbyint(x * 0x1.71547652b82fep+0);
  const double r = std::fma(-k, kLn2Lo, std::fma(-k, kLn2Hi, x));
  // |r| <= ln2/2: the Taylor series to r^13 is exact to below half an ulp.
  double p = 1.0 / 6227020800.0;
  for (double factorial_inverse :
       {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
        1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0})
    p = std::fma(p, r, factorial_inverse);
  const int half = static_cast<int>(k) / 2;  // two steps, so that k = 1024 does not overflow
  return scale_by_power_of_two(scale_by_power_of_two(p, half), static_cast<int>(k) - half);
}

double strict_log(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m-1)/(m+1), |s| <= 0.172.
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 23.0;
  for (double c : {1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0,
                   1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0})
    p = std::fma(p, z, c);
  const double log_m = std::fma(2.0 * s * z, p, 2.0 * s);
  return std::fma(exponent, kLn2Hi, std::fma(exponent, kLn2Lo, log_m));
}

void strict_sincos(double x, double* sine, double* cosine) {
  const double k = std::nearbyint(x * 0x1.45f306dc9c883p-1);
  const double r = std::fma(-k, kPio2Lo, std::fma(-k, kPio2Mid, std::fma(-k, kPio2Hi, x)));
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;  // r^15
  for (double c : {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0,
                   1.0 / 120.0, -1.0 / 6.0})
    s = std::fma(s, z, c);
  const double sin_r = std::fma(s * z, r, r);
  double q = 1.0 / 20922789888000.0;  // r^16
  for (double c : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
                   -1.0 / 720.0, 1.0 / 24.0, -0.5})
    q = std::fma(q, z, c);
  const double cos_r = std::fma(q, z, 1.0);
  switch (static_cast<int64_t>(k) & 3) {
    case 0:
      *sine = sin_r;
      *cosine = cos_r;
      break;
    case 1:
      *sine = cos_r;
      *cosine = -sin_r;
      break;
    case 2:
      *sine = -sin_r;
      *cosine = -cos_r;
      break;
    default:
      *sine = -cos_r;
      *cosine = sin_r;
      break;
  }
}

}  // namespace rlk
