// rlk's own elementary functions on the CPU: error in units in the last place against long double,
// and limits.

#include <cmath>
#include <cstdio>

#include "device/cpu/simd.h"
#include "device/harness.h"

namespace rlk::cpu {
namespace {

// Worst error in ulps of f over floats from a to b, stepping through bit patterns.
template <class Function, class Reference>
double worst_ulps(const char* name, float a, float b, const Function& f,
                  const Reference& reference) {
  double worst = 0;
  float worst_at = a;
  const auto check = [&](float x) {
    const float got = f(x);
    const long double want = reference(static_cast<long double>(x));
    const float near = std::abs(static_cast<float>(want));
    const float ulp = std::max(std::nextafter(near, INFINITY) - near, 0x1p-149f);
    const double error =
        std::abs(static_cast<double>((static_cast<long double>(got) - want) / ulp));
    if (error > worst) worst = error, worst_at = x;
  };
  constexpr int kSteps = 200000;
  for (int i = 0; i <= kSteps; ++i)
    check(a + (b - a) * (static_cast<float>(i) / kSteps));  // evenly spaced values
  for (float x = std::min(std::abs(a), std::abs(b)) + 1e-30f;
       x < std::max(std::abs(a), std::abs(b)); x *= 1.0003f)
    for (const float y : {x, -x})
      if (y >= a && y <= b) check(y);  // evenly spaced exponents
  std::printf("  %-12s worst %.2f ulp at %a\n", name, worst, static_cast<double>(worst_at));
  return worst;
}

TEST(CpuMath, ExponentialsAndLogarithmsAreWithinTwoUlps) {
  EXPECT_LE(worst_ulps("exp", -87.f, 88.f, exp1, [](long double x) { return std::exp(x); }), 2.0);
  EXPECT_LE(
      worst_ulps("exp subnormal", -103.f, -87.f, exp1, [](long double x) { return std::exp(x); }),
      2.0);
  EXPECT_LE(worst_ulps("exp2", -126.f, 127.9f, exp2_1, [](long double x) { return std::exp2(x); }),
            2.0);
  EXPECT_LE(worst_ulps("log", 1e-38f, 1e38f, log1, [](long double x) { return std::log(x); }), 2.0);
  EXPECT_LE(worst_ulps("log near 1", 0.5f, 2.f, log1, [](long double x) { return std::log(x); }),
            2.0);
  EXPECT_LE(worst_ulps("log2", 1e-38f, 1e38f, log2_1, [](long double x) { return std::log2(x); }),
            2.0);
  EXPECT_LE(
      worst_ulps("log2 near 1", 0.5f, 2.f, log2_1, [](long double x) { return std::log2(x); }),
      2.0);
}

TEST(CpuMath, UniformsOfEveryBitPatternGiveFinitePositiveLogarithms) {
  const auto minus_log = [](uint32_t t) {
    return first8(minus_log_uniform(all8(static_cast<int32_t>(t))));
  };
  double worst = 0;
  for (uint64_t t = 0; t < uint64_t{1} << 32; t += t < 1000 || t > 0xfffffc00u ? 1 : 30011) {
    const float got = minus_log(static_cast<uint32_t>(t));
    const long double u = (static_cast<long double>(t) + 0.5L) * 0x1p-32L;
    const long double want = -std::log(u);
    worst = std::max(worst, std::abs(static_cast<double>((got - want) / want)));
    ASSERT_TRUE(got > 0.f && std::isfinite(got)) << t;
  }
  std::printf("  -log(uniform) worst relative error %.3g\n", worst);
  EXPECT_LE(worst, 0x1p-22);
  EXPECT_GT(minus_log(0xffffffffu), 0.f);  // rounding u itself to fp32 would give log(1) = 0
}

TEST(CpuMath, SinAndCosOfTurnsAreWithinTwoUlpsOfOne) {
  double worst = 0;
  for (uint64_t t = 0; t < uint64_t{1} << 32; t += 40009) {
    F8 sin, cos;
    sin_cos_turns(all8(static_cast<int32_t>(static_cast<uint32_t>(t))), sin, cos);
    const long double a =
        2 * 3.14159265358979323846264338L * static_cast<long double>(t) * 0x1p-32L;
    worst = std::max(worst, std::abs(static_cast<double>(first8(sin) - std::sin(a))));
    worst = std::max(worst, std::abs(static_cast<double>(first8(cos) - std::cos(a))));
  }
  std::printf("  sin, cos worst absolute error %.3g\n", worst);
  EXPECT_LE(worst, 0x1p-22);
}

TEST(CpuMath, LimitsAreExact) {
  EXPECT_EQ(exp1(0.f), 1.f);
  EXPECT_EQ(exp1(-0.f), 1.f);
  EXPECT_EQ(exp1(-INFINITY), 0.f);
  EXPECT_EQ(exp1(INFINITY), INFINITY);
  EXPECT_EQ(exp1(-200.f), 0.f);
  EXPECT_EQ(exp2_1(0.f), 1.f);
  EXPECT_EQ(exp2_1(-INFINITY), 0.f);
  EXPECT_EQ(exp2_1(128.f), INFINITY);
  EXPECT_EQ(exp2_1(-149.f), 0x1p-149f);
  for (int e = -126; e < 128; ++e)
    EXPECT_EQ(exp2_1(static_cast<float>(e)), std::ldexp(1.f, e)) << e;
  EXPECT_EQ(log1(1.f), 0.f);
  EXPECT_EQ(log1(0.f), -INFINITY);
  EXPECT_EQ(log1(INFINITY), INFINITY);
  EXPECT_EQ(log2_1(0x1p-140f), -140.f);
  for (const float x : {-1.f, NAN}) {
    EXPECT_TRUE(std::isnan(log1(x)));
    EXPECT_TRUE(std::isnan(log2_1(x)));
  }
  EXPECT_TRUE(std::isnan(exp1(NAN)));
  EXPECT_TRUE(std::isnan(exp2_1(NAN)));
}

TEST(CpuMath, LanesAgree) {
  test::Random random(5);
  for (int i = 0; i < 2000; ++i) {
    alignas(32) float x[8], y[8];
    for (float& v : x) v = random.normal(20.f);
    store8(y, exp8(load8(x)));
    for (int j = 0; j < 8; ++j) ASSERT_EQ(y[j], exp1(x[j]));
  }
}

TEST(CpuMath, NarrowingAgreesWithTheScalarForEveryKindOfValue) {
  std::vector<uint32_t> bits = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7f800001,
                                0xffffffff, 0x7fffffff, 1,          0x00008000, 0x00018000,
                                0x7f7fffff, 0x3f808000, 0x3f818000, 0x3f808001};
  test::Random random(6);
  for (int i = 0; i < 100000; ++i)
    bits.push_back(static_cast<uint32_t>(random.below(int64_t{1} << 32)));
  for (const uint32_t u : bits) {
    const float x = __builtin_bit_cast(float, u);
    bf16 got[8];
    store8(got, all8(x));
    ASSERT_EQ(got[0].bits, to_bf16(x).bits) << std::hex << u;
  }
}

}  // namespace
}  // namespace rlk::cpu
