// rms_norm, its backward and its weight gradient.

#include "device/leaves.h"
#include "device/rows_cases.h"

namespace rlk::test {
namespace {

class Norms : public OpTest {};

struct NormCase {
  int64_t T, D;
  std::string text() const { return "T=" + std::to_string(T) + " D=" + std::to_string(D); }
};
std::vector<NormCase> norm_cases() {
  return {{33, 128}, {1, 128}, {5, 64}, {3, 8}, {4, 1032}, {17, 4096}, {2, 5120}};
}

struct NormData {
  NormCase c;
  std::vector<bf16> x, delta, w;
  explicit NormData(const NormCase& which) : c(which) {
    Random random(11);
    x = random.bf16s(static_cast<size_t>(c.T * c.D), 3.f);
    delta = random.bf16s(static_cast<size_t>(c.T * c.D));
    w = random.bf16s(static_cast<size_t>(c.D), 0.2f, 1.f);
  }
};

struct NormResult {
  std::vector<bf16> x_out, y;
  std::vector<float> rstd;
};

NormResult run_norm(const Ops& ops, const NormData& d, bool with_delta, bool in_place = false,
                    bool w_ready = false) {
  DeviceArray<bf16> x(ops, d.x), delta(ops, d.delta), w(ops, d.w), x_out(ops, d.x.size()),
      y(ops, d.x.size());
  DeviceArray<float> rstd(ops, static_cast<size_t>(d.c.T));
  ops.rms_norm(nullptr, {x.data(), with_delta ? delta.data() : nullptr,
                         with_delta ? (in_place ? x.data() : x_out.data()) : nullptr, w.data(),
                         y.data(), rstd.data(), d.c.T, d.c.D, kEps, w_ready});
  return {with_delta && !in_place ? x_out.host() : x.host(), y.host(), rstd.host()};
}

TEST_P(Norms, RmsNormIsCloseToFp64) {
  RLK_NEEDS(rms_norm);
  for (const NormCase& c : norm_cases()) {
    const NormData d(c);
    const NormResult got = run_norm(ops(), d, false);
    Vector want, rstd;
    for (int64_t t = 0; t < c.T; ++t) {
      append(want, ref::rms_norm(slice(d.x, t * c.D, c.D), values(d.w), kEps));
      rstd.push_back(ref::reciprocal_rms(slice(d.x, t * c.D, c.D), kEps));
    }
    // One rounding to bf16 of an fp32 value that is a few 2^-24 off.
    EXPECT_TRUE(close_to("rms_norm " + c.text(), got.y, want, {kBf16Half * 1.001}));
    EXPECT_TRUE(close_to("rms_norm rstd " + c.text(), got.rstd, rstd, {5e-7}));
  }
}

TEST_P(Norms, RmsNormAddsAndRoundsTheResidualFirst) {
  RLK_NEEDS(rms_norm);
  for (const NormCase& c : norm_cases()) {
    NormData d(c);
    const NormResult fused = run_norm(ops(), d, true), in_place = run_norm(ops(), d, true, true),
                     ahead = run_norm(ops(), d, true, false, true);
    std::vector<bf16> sum(d.x.size());
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] = to_bf16(to_float(d.x[i]) + to_float(d.delta[i]));
    EXPECT_TRUE(same_bits("residual " + c.text(), fused.x_out, sum));
    d.x = sum;
    const NormResult plain = run_norm(ops(), d, false);
    EXPECT_TRUE(same_bits("y " + c.text(), fused.y, plain.y));
    EXPECT_TRUE(same_bits("rstd " + c.text(), fused.rstd, plain.rstd));
    EXPECT_TRUE(same_bits("in place x " + c.text(), in_place.x_out, sum));
    EXPECT_TRUE(same_bits("in place y " + c.text(), in_place.y, plain.y));
    EXPECT_TRUE(same_bits("y, weights read ahead " + c.text(), ahead.y, plain.y));
  }
}

TEST_P(Norms, RmsNormRowAloneEqualsRowInBatch) {
  RLK_NEEDS(rms_norm);
  for (const NormCase& c : norm_cases()) {
    const NormData d(c);
    const NormResult whole = run_norm(ops(), d, true);
    for (int64_t t = 0; t < c.T; ++t) {
      NormData one = d;
      one.c.T = 1;
      one.x = part(d.x, t * c.D, c.D), one.delta = part(d.delta, t * c.D, c.D);
      EXPECT_TRUE(same_bits(c.text() + " row " + std::to_string(t), run_norm(ops(), one, true).y,
                            part(whole.y, t * c.D, c.D)));
    }
  }
}

struct NormBwdData : NormData {
  std::vector<float> dy, dres, rstd;
  explicit NormBwdData(const NormCase& which) : NormData(which) {
    Random random(12);
    dy = random.floats(x.size());
    dres = random.floats(x.size());
    for (int64_t t = 0; t < c.T; ++t)
      rstd.push_back(static_cast<float>(ref::reciprocal_rms(slice(x, t * c.D, c.D), kEps)));
  }
};

std::vector<float> run_norm_bwd(const Ops& ops, const NormBwdData& d, bool accumulate) {
  const DeviceArray<float> dy(ops, d.dy), rstd(ops, d.rstd);
  const DeviceArray<bf16> x(ops, d.x), w(ops, d.w);
  DeviceArray<float> dres(ops, d.dres);
  ops.rms_norm_bwd(
      nullptr, {dy.data(), x.data(), w.data(), rstd.data(), dres.data(), d.c.T, d.c.D, accumulate});
  return dres.host();
}

TEST_P(Norms, RmsNormBwdIsCloseToFp64) {
  RLK_NEEDS(rms_norm_bwd);
  for (const NormCase& c : norm_cases()) {
    const NormBwdData d(c);
    Vector want, sum;
    for (int64_t t = 0; t < c.T; ++t)
      append(want, ref::rms_norm_bwd(slice(d.x, t * c.D, c.D), values(d.w),
                                     slice(d.dy, t * c.D, c.D), kEps, nullptr));
    for (size_t i = 0; i < want.size(); ++i) sum.push_back(want[i] + value(d.dres[i]));
    // fp32 throughout; the difference dy*w - xhat*mean cancels, so against the scale of its terms
    // (about 1).
    EXPECT_TRUE(
        close_to("rms_norm_bwd " + c.text(), run_norm_bwd(ops(), d, false), want, {1e-6, 0.3}));
    EXPECT_TRUE(
        close_to("rms_norm_bwd += " + c.text(), run_norm_bwd(ops(), d, true), sum, {1e-6, 1.0}));
  }
}

TEST(RowsReference, RmsNormGradientsAgreeWithFiniteDifferences) {
  Random random(1);
  Vector x, w, dy, dw(6);
  for (int i = 0; i < 6; ++i)
    x.push_back(random.normal()), w.push_back(random.normal()), dy.push_back(random.normal());
  const Vector dx = ref::rms_norm_bwd(x, w, dy, kEps, &dw);
  const auto loss = [&] {
    const Vector y = ref::rms_norm(x, w, kEps);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto slope = [&](double& at) {
    const double saved = at, h = 1e-5;
    at = saved + h;
    const double up = loss();
    at = saved - h;
    const double down = loss();
    at = saved;
    return (up - down) / (2 * h);
  };
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(dx[i], slope(x[i]), 1e-8);
    EXPECT_NEAR(dw[i], slope(w[i]), 1e-8);
    const double g = x[i], h = 1e-5;
    EXPECT_NEAR(ref::silu_slope(g), (ref::silu(g + h) - ref::silu(g - h)) / (2 * h), 1e-8);
  }
}

TEST_P(Norms, RmsNormBwdRowAloneEqualsRowInBatch) {
  RLK_NEEDS(rms_norm_bwd);
  for (const NormCase& c : norm_cases()) {
    const NormBwdData d(c);
    const std::vector<float> whole = run_norm_bwd(ops(), d, true);
    for (int64_t t = 0; t < c.T; ++t) {
      NormBwdData one = d;
      one.c.T = 1;
      one.x = part(d.x, t * c.D, c.D), one.dy = part(d.dy, t * c.D, c.D),
      one.dres = part(d.dres, t * c.D, c.D);
      one.rstd = part(d.rstd, t, 1);
      EXPECT_TRUE(same_bits(c.text() + " row " + std::to_string(t), run_norm_bwd(ops(), one, true),
                            part(whole, t * c.D, c.D)));
    }
  }
}

// ---- rms_norm_wgrad

struct NormWgradData {
  int64_t D;
  Leaves leaves;
  std::vector<float> dy, rstd;
  std::vector<bf16> x;
  NormWgradData(int64_t width, const Leaves& which) : D(width), leaves(which) {
    Random random(13);
    const auto T = static_cast<size_t>(leaves.begin[leaves.count]);
    dy = random.floats(T * static_cast<size_t>(D));
    x = random.bf16s(T * static_cast<size_t>(D));
    rstd = random.floats(T, 0.1f, 1.f);
  }
};

std::vector<float> run_norm_wgrad(const Ops& ops, const NormWgradData& d) {
  const DeviceArray<float> dy(ops, d.dy), rstd(ops, d.rstd);
  const DeviceArray<bf16> x(ops, d.x);
  DeviceArray<float> dw(ops, static_cast<size_t>(d.D));
  RmsNormWgradArgs args{dy.data(), x.data(), rstd.data(), dw.data(), d.D, d.leaves, nullptr};
  const DeviceBytes workspace(ops, ops.rms_norm_wgrad_workspace(args));
  args.workspace = workspace.data();
  ops.rms_norm_wgrad(nullptr, args);
  return dw.host();
}

TEST_P(Norms, RmsNormWgradIsCloseToFp64AndJoinsOverAnyRanks) {
  RLK_NEEDS(rms_norm_wgrad);
  RLK_NEEDS(tree_add);
  for (const Leaves& leaves : leaf_cases())
    for (const int64_t D : {8, 128, 1032}) {
      const NormWgradData d(D, leaves);
      Vector want(static_cast<size_t>(D)), size(want);
      for (size_t i = 0; i < d.dy.size(); ++i) {
        const double term =
            value(d.dy[i]) * value(d.x[i]) * value(d.rstd[i / static_cast<size_t>(D)]);
        want[i % static_cast<size_t>(D)] += term;
        size[i % static_cast<size_t>(D)] += std::abs(term);
      }
      const std::vector<float> whole = run_norm_wgrad(ops(), d);
      const std::string what = text(leaves) + " D=" + std::to_string(D);
      // A chain of fp32 terms, each itself a product of rounded products.
      EXPECT_TRUE(close_to("rms_norm_wgrad " + what, whole, want, {2e-6}, size));
      for (int ranks = 2; ranks <= leaves.count; ranks *= 2) {
        std::vector<std::vector<float>> parts;
        for (int r = 0; r < ranks; ++r) {
          NormWgradData one = d;
          one.leaves = leaves_of_rank(leaves, r, ranks);
          parts.push_back(run_norm_wgrad(ops(), one));
        }
        EXPECT_TRUE(same_bits(what + " ranks " + std::to_string(ranks), join(ops(), parts), whole));
      }
    }
}

TEST_P(Norms, RmsNormWgradIsAnchoredAtTheLeafsStart) {
  RLK_NEEDS(rms_norm_wgrad);
  NormWgradData d(128, leaves_of({1, 3, 2, 1}));
  const std::vector<float> whole = run_norm_wgrad(ops(), d);
  NormWgradData moved(128, leaves_of({1, 3, 2, 1}));
  for (int l = 0; l <= 4; ++l)
    moved.leaves.begin[l] += 64;  // the same leaves, 64 rows further down
  const auto down = [](auto& x, size_t n) { x.insert(x.begin(), n, {}); };
  down(moved.dy, 64 * 128), down(moved.x, 64 * 128), down(moved.rstd, 64);
  EXPECT_TRUE(same_bits("moved by 64 rows", run_norm_wgrad(ops(), moved), whole));
}

TEST_P(Norms, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  const NormBwdData norm({700, 128});
  const NormWgradData wgrad(1032, leaves_of({3, 1, 0, 2}));
  const NormResult y = run_norm(cpu_ops(1), norm, true);
  const std::vector<float> dx = run_norm_bwd(cpu_ops(1), norm, true),
                           dw = run_norm_wgrad(cpu_ops(1), wgrad);
  for (const int threads : {2, 5}) {
    EXPECT_TRUE(same_bits("rms_norm", run_norm(cpu_ops(threads), norm, true).y, y.y));
    EXPECT_TRUE(same_bits("rms_norm_bwd", run_norm_bwd(cpu_ops(threads), norm, true), dx));
    EXPECT_TRUE(same_bits("rms_norm_wgrad", run_norm_wgrad(cpu_ops(threads), wgrad), dw));
  }
  cpu_ops(1);
}

TEST_P(Norms, RefuseShapesOutsideTheirContract) {
  RLK_NEEDS(rms_norm);
  RLK_NEEDS(rms_norm_wgrad);
  const NormData d({2, 64});
  DeviceArray<bf16> x(ops(), d.x), w(ops(), d.w), y(ops(), d.x.size());
  EXPECT_THROW(ops().rms_norm(
                   nullptr, {x.data(), nullptr, nullptr, w.data(), y.data(), nullptr, 2, 60, kEps}),
               Error);
  Leaves odd = leaves_of({1, 1});
  odd.begin[1] = 63;
  NormWgradData bad(64, leaves_of({2}));
  bad.leaves = odd;
  EXPECT_THROW(run_norm_wgrad(ops(), bad), Error);
  bad.leaves.count = 3;
  EXPECT_THROW(run_norm_wgrad(ops(), bad), Error);
}

RLK_FOR_EACH_BACKEND(Norms);

}  // namespace
}  // namespace rlk::test
