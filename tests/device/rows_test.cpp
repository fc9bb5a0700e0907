// Row ops: rms_norm, qk_norm_rope, swiglu, embedding and their backward passes; kv_write, gather
// and scatter.

#include "ref/rows.h"

#include "device/harness.h"
#include "device/leaves.h"

namespace rlk::test {
namespace {

class Rows : public OpTest {};

using ref::Vector;

template <class T>
Vector slice(const std::vector<T>& x, int64_t first, int64_t n) {
  Vector out;
  for (int64_t i = first; i < first + n; ++i) out.push_back(value(x[static_cast<size_t>(i)]));
  return out;
}
void append(Vector& to, const Vector& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
std::vector<T> part(const std::vector<T>& x, int64_t first, int64_t n) {
  return {x.begin() + first, x.begin() + first + n};
}

// ---- rms_norm

struct NormCase {
  int64_t T, D;
  std::string text() const { return "T=" + std::to_string(T) + " D=" + std::to_string(D); }
};
std::vector<NormCase> norm_cases() {
  return {{33, 128}, {1, 128}, {5, 64}, {3, 8}, {4, 1032}, {17, 4096}, {2, 5120}};
}

constexpr float kEps = 1e-6f;

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

NormResult run_norm(const Ops& ops, const NormData& d, bool with_delta, bool in_place = false) {
  DeviceArray<bf16> x(ops, d.x), delta(ops, d.delta), w(ops, d.w), x_out(ops, d.x.size()),
      y(ops, d.x.size());
  DeviceArray<float> rstd(ops, static_cast<size_t>(d.c.T));
  ops.rms_norm(nullptr, {x.data(), with_delta ? delta.data() : nullptr,
                         with_delta ? (in_place ? x.data() : x_out.data()) : nullptr, w.data(),
                         y.data(), rstd.data(), d.c.T, d.c.D, kEps});
  return {with_delta && !in_place ? x_out.host() : x.host(), y.host(), rstd.host()};
}

TEST_P(Rows, RmsNormIsCloseToFp64) {
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

TEST_P(Rows, RmsNormAddsAndRoundsTheResidualFirst) {
  RLK_NEEDS(rms_norm);
  for (const NormCase& c : norm_cases()) {
    NormData d(c);
    const NormResult fused = run_norm(ops(), d, true), in_place = run_norm(ops(), d, true, true);
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
  }
}

TEST_P(Rows, RmsNormRowAloneEqualsRowInBatch) {
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

TEST_P(Rows, RmsNormBwdIsCloseToFp64) {
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

TEST_P(Rows, RmsNormBwdRowAloneEqualsRowInBatch) {
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

TEST_P(Rows, RmsNormWgradIsCloseToFp64AndJoinsOverAnyRanks) {
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

TEST_P(Rows, RmsNormWgradIsAnchoredAtTheLeafsStart) {
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

// ---- qk_norm_rope

struct QkCase {
  int slices, hq, hkv, Dh;
  int64_t T;
  std::string text() const {
    return "slices=" + std::to_string(slices) + " hq=" + std::to_string(hq) +
           " hkv=" + std::to_string(hkv) + " Dh=" + std::to_string(Dh) + " T=" + std::to_string(T);
  }
  int64_t width() const { return int64_t{slices} * (hq + 2 * hkv) * Dh; }
  // Offset of a head inside a packed row: q heads, then k, then v, slice by slice.
  int64_t q(int h) const { return int64_t{h / hq} * (hq + 2 * hkv) * Dh + int64_t{h % hq} * Dh; }
  int64_t k(int h) const {
    return int64_t{h / hkv} * (hq + 2 * hkv) * Dh + int64_t{hq + h % hkv} * Dh;
  }
  int64_t v(int h) const { return k(h) + int64_t{hkv} * Dh; }
};
std::vector<QkCase> qk_cases() {
  return {{8, 2, 1, 64, 64},  {1, 2, 1, 64, 64}, {8, 4, 1, 128, 64},
          {2, 5, 1, 128, 64}, {4, 6, 2, 64, 64}, {2, 1, 1, 32, 64}};
}

constexpr int64_t kPositions = 300;

struct QkData {
  QkCase c;
  std::vector<bf16> qkv, q_weight, k_weight;
  std::vector<int32_t> position;
  std::vector<float> rope;
  explicit QkData(const QkCase& which) : c(which) {
    Random random(17);
    qkv = random.bf16s(static_cast<size_t>(c.T * c.width()), 2.f);
    q_weight = random.bf16s(static_cast<size_t>(c.Dh), 0.3f, 1.f);
    k_weight = random.bf16s(static_cast<size_t>(c.Dh), 0.3f, 1.f);
    for (int64_t t = 0; t < c.T; ++t)
      position.push_back(static_cast<int32_t>(random.below(kPositions)));
    for (int64_t p = 0; p < kPositions; ++p)
      for (int i = 0; i < c.Dh / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(1e6, -2.0 * i / c.Dh);
        rope.push_back(static_cast<float>(std::cos(angle)));
        rope.push_back(static_cast<float>(std::sin(angle)));
      }
  }
  Vector cos(int64_t t) const { return angles(t, 0); }
  Vector sin(int64_t t) const { return angles(t, 1); }

 private:
  Vector angles(int64_t t, int which) const {
    Vector out;
    for (int i = 0; i < c.Dh / 2; ++i)
      out.push_back(rope[static_cast<size_t>(
          (position[static_cast<size_t>(t)] * (c.Dh / 2) + i) * 2 + which)]);
    return out;
  }
};

struct Qkv {
  std::vector<bf16> q, k, v;
};

Qkv run_qk(const Ops& ops, const QkData& d) {
  const QkCase& c = d.c;
  const DeviceArray<bf16> qkv(ops, d.qkv), qw(ops, d.q_weight), kw(ops, d.k_weight);
  const DeviceArray<int32_t> position(ops, d.position);
  const DeviceArray<float> rope(ops, d.rope);
  const auto heads = static_cast<size_t>(c.T * c.slices * c.Dh);
  DeviceArray<bf16> q(ops, heads * static_cast<size_t>(c.hq)),
      k(ops, heads * static_cast<size_t>(c.hkv)), v(ops, heads * static_cast<size_t>(c.hkv));
  ops.qk_norm_rope(
      nullptr, {qkv.data(), qw.data(), kw.data(), position.data(), rope.data(), q.data(), k.data(),
                v.data(), nullptr, nullptr, c.T, c.slices, c.hq, c.hkv, c.Dh, kEps});
  return {q.host(), k.host(), v.host()};
}

Vector rounded(Vector x) {
  for (double& v : x) v = value(to_bf16(static_cast<float>(v)));
  return x;
}

TEST_P(Rows, QkNormRopeIsCloseToFp64) {
  RLK_NEEDS(qk_norm_rope);
  for (const QkCase& c : qk_cases()) {
    const QkData d(c);
    const Qkv got = run_qk(ops(), d);
    Vector q, k;
    std::vector<bf16> v;
    for (int64_t t = 0; t < c.T; ++t) {
      const auto head = [&](int64_t at, const std::vector<bf16>& w) {
        const Vector y =
            rounded(ref::rms_norm(slice(d.qkv, t * c.width() + at, c.Dh), values(w), kEps));
        return ref::rotate(y, d.cos(t), d.sin(t));
      };
      for (int h = 0; h < c.slices * c.hq; ++h) append(q, head(c.q(h), d.q_weight));
      for (int h = 0; h < c.slices * c.hkv; ++h) append(k, head(c.k(h), d.k_weight));
      for (int h = 0; h < c.slices * c.hkv; ++h) {
        const auto row = part(d.qkv, t * c.width() + c.v(h), c.Dh);
        v.insert(v.end(), row.begin(), row.end());
      }
    }
    // The first rounding may go the other way (an fp32 value at a tie): a bf16 step of either half,
    // then one of the result.
    EXPECT_TRUE(close_to("qk_norm_rope q " + c.text(), got.q, q, {2.5 * kBf16Half, 2.0}));
    EXPECT_TRUE(close_to("qk_norm_rope k " + c.text(), got.k, k, {2.5 * kBf16Half, 2.0}));
    EXPECT_TRUE(same_bits("qk_norm_rope v " + c.text(), got.v, v));
  }
}

TEST_P(Rows, QkNormRopeRowAndSliceAloneEqualTogether) {
  RLK_NEEDS(qk_norm_rope);
  for (const QkCase& c : qk_cases()) {
    const QkData d(c);
    const Qkv whole = run_qk(ops(), d);
    const int64_t one_width = c.width() / c.slices;
    for (int64_t t = 0; t < c.T; t += 9)
      for (int s = 0; s < c.slices; ++s) {
        QkData one = d;
        one.c.T = 1, one.c.slices = 1;
        one.qkv = part(d.qkv, t * c.width() + s * one_width, one_width);
        one.position = part(d.position, t, 1);
        const Qkv got = run_qk(ops(), one);
        const std::string what =
            c.text() + " row " + std::to_string(t) + " slice " + std::to_string(s);
        const int64_t nq = int64_t{c.hq} * c.Dh, nk = int64_t{c.hkv} * c.Dh;
        EXPECT_TRUE(same_bits(what, got.q, part(whole.q, (t * c.slices + s) * nq, nq)));
        EXPECT_TRUE(same_bits(what, got.k, part(whole.k, (t * c.slices + s) * nk, nk)));
      }
  }
}

// A cache of pages in descending order, two shards, poisoned.
struct SmallCache {
  DeviceArray<bf16> k0, k1, v0, v1;
  DeviceArray<int32_t> table;
  KvCache view{};
  SmallCache(const Ops& ops, int sequences, int KH, int Dh)
      : k0(ops, size(sequences, KH, Dh)),
        k1(ops, size(sequences, KH, Dh)),
        v0(ops, size(sequences, KH, Dh)),
        v1(ops, size(sequences, KH, Dh)),
        table(ops, entries(sequences)) {
    kv_page_layout(view, KH, Dh, 16);
    view.k[0] = k0.data(), view.k[1] = k1.data(), view.v[0] = v0.data(), view.v[1] = v1.data();
    view.page_table = table.data();
    view.max_pages = kPages;
  }
  static constexpr int kPages = static_cast<int>(kPositions / 16 + 1);
  static size_t size(int sequences, int KH, int Dh) {
    return static_cast<size_t>(sequences * kPages * 16 * KH * Dh);
  }
  static std::vector<int32_t> entries(int sequences) {
    std::vector<int32_t> e;
    for (int i = sequences * kPages - 1; i >= 0; --i) e.push_back(i % 2 << 24 | i);
    return e;
  }
  std::vector<bf16> contents() const {
    std::vector<bf16> all;
    for (const DeviceArray<bf16>* a : {&k0, &k1, &v0, &v1}) {
      const std::vector<bf16> one = a->host();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

TEST_P(Rows, QkNormRopeIntoTheCacheEqualsKvWrite) {
  RLK_NEEDS(qk_norm_rope);
  RLK_NEEDS(kv_write);
  for (const QkCase& c : qk_cases()) {
    QkData d(c);
    std::vector<int32_t> seq;
    for (int64_t t = 0; t < c.T; ++t) {  // distinct places, some rows written nowhere
      d.position[static_cast<size_t>(t)] = static_cast<int32_t>(t * 4 % kPositions);
      seq.push_back(t % 5 == 4 ? -1 : static_cast<int32_t>(t % 3));
    }
    const Qkv rows = run_qk(ops(), d);
    const int KH = c.slices * c.hkv;
    SmallCache separate(ops(), 3, KH, c.Dh);
    const DeviceArray<bf16> qkv(ops(), d.qkv), qw(ops(), d.q_weight), kw(ops(), d.k_weight),
        k(ops(), rows.k), v(ops(), rows.v);
    const DeviceArray<int32_t> position(ops(), d.position), sequence(ops(), seq);
    const DeviceArray<float> rope(ops(), d.rope);
    ops().kv_write(nullptr, {k.data(), v.data(), &separate.view, sequence.data(), position.data(),
                             c.T, KH, c.Dh});
    for (const bool ready : {false, true}) {
      SmallCache fused(ops(), 3, KH, c.Dh);
      DeviceArray<bf16> q(ops(), rows.q.size());
      ops().qk_norm_rope(nullptr, {qkv.data(), qw.data(), kw.data(), position.data(), rope.data(),
                                   q.data(), nullptr, nullptr, &fused.view, sequence.data(), c.T,
                                   c.slices, c.hq, c.hkv, c.Dh, kEps, ready});
      EXPECT_TRUE(same_bits("q " + c.text(), q.host(), rows.q));
      const std::vector<bf16> cache = fused.contents();
      EXPECT_TRUE(same_bits("cache " + c.text(), cache, separate.contents()));
      size_t written = 0;
      for (const bf16 x : cache) written += x.bits != 0xffff;
      EXPECT_EQ(written, static_cast<size_t>(2 * KH * c.Dh * (c.T - c.T / 5)));
    }
  }
}

struct QkGradients {
  std::vector<bf16> dqkv;
  std::vector<float> q_dw, k_dw;
};

struct QkBwdData : QkData {
  Leaves leaves;
  std::vector<bf16> dq, dk, dv;
  QkBwdData(QkCase which, const Leaves& of)
      : QkData((which.T = of.begin[of.count], which)), leaves(of) {
    Random random(19);
    const auto heads = static_cast<size_t>(c.T * c.slices * c.Dh);
    dq = random.bf16s(heads * static_cast<size_t>(c.hq));
    dk = random.bf16s(heads * static_cast<size_t>(c.hkv));
    dv = random.bf16s(heads * static_cast<size_t>(c.hkv));
  }
};

QkGradients run_qk_bwd(const Ops& ops, const QkBwdData& d) {
  const QkCase& c = d.c;
  const DeviceArray<bf16> qkv(ops, d.qkv), qw(ops, d.q_weight), kw(ops, d.k_weight), dq(ops, d.dq),
      dk(ops, d.dk), dv(ops, d.dv);
  const DeviceArray<int32_t> position(ops, d.position);
  const DeviceArray<float> rope(ops, d.rope);
  DeviceArray<bf16> dqkv(ops, d.qkv.size());
  const auto weights = static_cast<size_t>(d.leaves.count * c.slices * c.Dh);
  DeviceArray<float> q_dw(ops, weights), k_dw(ops, weights);
  QkNormRopeBwdArgs args{
      qkv.data(), qw.data(),   kw.data(),   position.data(), rope.data(), dq.data(), dk.data(),
      dv.data(),  dqkv.data(), q_dw.data(), k_dw.data(),     c.T,         c.slices,  c.hq,
      c.hkv,      c.Dh,        kEps,        d.leaves,        nullptr};
  const DeviceBytes workspace(ops, ops.qk_norm_rope_bwd_workspace(args));
  args.workspace = workspace.data();
  ops.qk_norm_rope_bwd(nullptr, args);
  return {dqkv.host(), q_dw.host(), k_dw.host()};
}

TEST_P(Rows, QkNormRopeBwdIsCloseToFp64) {
  RLK_NEEDS(qk_norm_rope_bwd);
  for (const QkCase& c0 : qk_cases())
    for (const Leaves& leaves : {leaves_of({1, 0, 2, 1, 1, 1, 0, 1}), leaves_of({2})}) {
      const QkBwdData d(c0, leaves);
      const QkCase& c = d.c;
      const QkGradients got = run_qk_bwd(ops(), d);
      Vector dx(d.qkv.size()), q_dw(got.q_dw.size()), k_dw(got.k_dw.size());
      for (int l = 0; l < leaves.count; ++l)
        for (int64_t t = leaves.begin[l]; t < leaves.begin[l + 1]; ++t) {
          const auto head = [&](int64_t at, const std::vector<bf16>& w, const Vector& dy,
                                Vector& dw, int slice_of) {
            Vector sum(static_cast<size_t>(c.Dh));
            const Vector one =
                ref::rms_norm_bwd(slice(d.qkv, t * c.width() + at, c.Dh), values(w),
                                  ref::rotate(dy, d.cos(t), d.sin(t), -1), kEps, &sum);
            for (int i = 0; i < c.Dh; ++i) {
              dx[static_cast<size_t>(t * c.width() + at + i)] = one[static_cast<size_t>(i)];
              dw[static_cast<size_t>((l * c.slices + slice_of) * c.Dh + i)] +=
                  sum[static_cast<size_t>(i)];
            }
          };
          const int H = c.slices * c.hq, KH = c.slices * c.hkv;
          for (int h = 0; h < H; ++h)
            head(c.q(h), d.q_weight, slice(d.dq, (t * H + h) * c.Dh, c.Dh), q_dw, h / c.hq);
          for (int h = 0; h < KH; ++h) {
            head(c.k(h), d.k_weight, slice(d.dk, (t * KH + h) * c.Dh, c.Dh), k_dw, h / c.hkv);
            for (int i = 0; i < c.Dh; ++i)
              dx[static_cast<size_t>(t * c.width() + c.v(h) + i)] =
                  value(d.dv[static_cast<size_t>((t * KH + h) * c.Dh + i)]);
          }
        }
      const std::string what = c.text() + " " + text(leaves);
      EXPECT_TRUE(
          close_to("qk_norm_rope_bwd dqkv " + what, got.dqkv, dx, {kBf16Half * 1.001, 1e-3}));
      // Sums of up to 1000 terms of about 1, of either sign.
      EXPECT_TRUE(close_to("qk_norm_rope_bwd q_dw " + what, got.q_dw, q_dw, {2e-6, 100.0}));
      EXPECT_TRUE(close_to("qk_norm_rope_bwd k_dw " + what, got.k_dw, k_dw, {2e-6, 100.0}));
    }
}

TEST_P(Rows, QkNormRopeBwdSliceAndLeafAloneEqualTogether) {
  RLK_NEEDS(qk_norm_rope_bwd);
  for (const QkCase& c0 : qk_cases()) {
    const QkBwdData d(c0, leaves_of({1, 0, 2, 1}));
    const QkCase& c = d.c;
    const QkGradients whole = run_qk_bwd(ops(), d);
    for (int l = 0; l < 4; ++l)
      for (int s = 0; s < c.slices; ++s) {
        const int64_t first = d.leaves.begin[l], n = d.leaves.begin[l + 1] - first;
        QkCase one_case = c;
        one_case.slices = 1;
        QkBwdData one(one_case, leaves_of({n / 64}));
        one.position = part(d.position, first, n);
        one.q_weight = d.q_weight, one.k_weight = d.k_weight;
        std::vector<bf16> want;
        const auto copy = [&](const std::vector<bf16>& from, int64_t width, std::vector<bf16>& to) {
          to.clear();
          for (int64_t t = first; t < first + n; ++t) {
            const auto row = part(from, (t * c.slices + s) * width, width);
            to.insert(to.end(), row.begin(), row.end());
          }
        };
        copy(d.qkv, c.width() / c.slices, one.qkv);
        copy(d.dq, c.hq * c.Dh, one.dq), copy(d.dk, c.hkv * c.Dh, one.dk),
            copy(d.dv, c.hkv * c.Dh, one.dv);
        copy(whole.dqkv, c.width() / c.slices, want);
        const QkGradients got = run_qk_bwd(ops(), one);
        const std::string what =
            c.text() + " leaf " + std::to_string(l) + " slice " + std::to_string(s);
        EXPECT_TRUE(same_bits(what + " dqkv", got.dqkv, want));
        EXPECT_TRUE(
            same_bits(what + " q_dw", got.q_dw, part(whole.q_dw, (l * c.slices + s) * c.Dh, c.Dh)));
        EXPECT_TRUE(
            same_bits(what + " k_dw", got.k_dw, part(whole.k_dw, (l * c.slices + s) * c.Dh, c.Dh)));
      }
  }
}

// ---- swiglu

struct SwigluCase {
  int64_t T, fs;
  int slices;
  std::string text() const {
    return "T=" + std::to_string(T) + " fs=" + std::to_string(fs) +
           " slices=" + std::to_string(slices);
  }
};
std::vector<SwigluCase> swiglu_cases() {
  return {{33, 48, 8}, {1, 48, 1}, {7, 1536, 2}, {3, 8, 4}};
}

std::vector<bf16> run_swiglu(const Ops& ops, const SwigluCase& c, const std::vector<bf16>& x) {
  const DeviceArray<bf16> gate_up(ops, x);
  DeviceArray<bf16> act(ops, x.size() / 2);
  ops.swiglu(nullptr, {gate_up.data(), act.data(), c.T, c.fs, c.slices});
  return act.host();
}

std::vector<bf16> run_swiglu_bwd(const Ops& ops, const SwigluCase& c, const std::vector<bf16>& x,
                                 const std::vector<bf16>& dy, bool in_place) {
  DeviceArray<bf16> gate_up(ops, x), out(ops, x.size());
  const DeviceArray<bf16> dact(ops, dy);
  ops.swiglu_bwd(nullptr, {gate_up.data(), dact.data(), in_place ? gate_up.data() : out.data(), c.T,
                           c.fs, c.slices});
  return in_place ? gate_up.host() : out.host();
}

TEST_P(Rows, SwigluAndItsBackwardAreCloseToFp64) {
  RLK_NEEDS(swiglu);
  RLK_NEEDS(swiglu_bwd);
  for (const SwigluCase& c : swiglu_cases()) {
    Random random(23);
    const auto n = static_cast<size_t>(c.T * c.slices * c.fs);
    const std::vector<bf16> x = random.bf16s(2 * n, 4.f), dact = random.bf16s(n);
    Vector act(n), dx(2 * n);
    for (size_t i = 0; i < n; ++i) {
      const size_t fs = static_cast<size_t>(c.fs), gate_at = i / fs * 2 * fs + i % fs;
      const double gate = value(x[gate_at]), up = value(x[gate_at + fs]), d = value(dact[i]);
      act[i] = ref::silu(gate) * up;
      dx[gate_at] = d * up * ref::silu_slope(gate);
      dx[gate_at + fs] = d * ref::silu(gate);
    }
    EXPECT_TRUE(close_to("swiglu " + c.text(), run_swiglu(ops(), c, x), act, {kBf16Half * 1.001}));
    // The slope crosses zero near -1.28, where its terms cancel: hence the floor.
    const std::vector<bf16> got = run_swiglu_bwd(ops(), c, x, dact, false);
    EXPECT_TRUE(close_to("swiglu_bwd " + c.text(), got, dx, {kBf16Half * 1.001, 1e-3}));
    EXPECT_TRUE(
        same_bits("swiglu_bwd in place " + c.text(), run_swiglu_bwd(ops(), c, x, dact, true), got));
  }
}

TEST_P(Rows, SwigluOfExtremesIsWhatTheFormulaSays) {
  RLK_NEEDS(swiglu);
  const SwigluCase c{1, 8, 1};
  std::vector<bf16> x;
  for (const float gate : {-1e30f, -100.f, -0.f, 0.f, 100.f, 1e30f, INFINITY, NAN})
    x.push_back(to_bf16(gate));
  for (int i = 0; i < 8; ++i) x.push_back(to_bf16(2.f));
  const std::vector<bf16> y = run_swiglu(ops(), c, x);
  EXPECT_EQ(value(y[0]), 0.0);
  EXPECT_LE(std::abs(value(y[1])), 1e-35);
  EXPECT_EQ(value(y[2]), 0.0);
  EXPECT_EQ(value(y[3]), 0.0);
  EXPECT_EQ(value(y[4]), 200.0);
  EXPECT_EQ(value(y[5]), value(to_bf16(2e30f)));
  EXPECT_EQ(value(y[6]), INFINITY);
  EXPECT_TRUE(std::isnan(value(y[7])));
}

// ---- embedding

TEST_P(Rows, EmbeddingSelectsTheOwnersRow) {
  RLK_NEEDS(embedding);
  for (const int64_t D : {8, 128, 4096}) {
    Random random(29);
    const int64_t slice_rows = 16, T = 70;
    std::vector<std::vector<bf16>> table;
    std::vector<DeviceArray<bf16>> on_device;
    EmbeddingArgs args{};
    for (int v = 0; v < kSlices; ++v) {
      table.push_back(random.bf16s(static_cast<size_t>(slice_rows * D)));
      on_device.emplace_back(ops(), table.back());
      args.slice[v] = on_device.back().data();
    }
    std::vector<int32_t> ids{0, 127};
    while (ids.size() < static_cast<size_t>(T))
      ids.push_back(static_cast<int32_t>(random.below(8 * slice_rows)));
    const DeviceArray<int32_t> ids_on_device(ops(), ids);
    DeviceArray<bf16> y(ops(), static_cast<size_t>(T * D));
    args.slice_rows = slice_rows, args.ids = ids_on_device.data(), args.y = y.data(), args.T = T,
    args.D = D;
    ops().embedding(nullptr, args);
    std::vector<bf16> want;
    for (const int32_t id : ids) {
      const auto row = part(table[static_cast<size_t>(id / slice_rows)], id % slice_rows * D, D);
      want.insert(want.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits("D=" + std::to_string(D), y.host(), want));
  }
}

TEST_P(Rows, EmbeddingBwdSumsEachRowsTokensByLeaves) {
  RLK_NEEDS(embedding_bwd);
  for (const Leaves& leaves : leaf_cases()) {
    const int64_t T = leaves.begin[leaves.count], D = 136;
    Random random(31);
    const std::vector<float> dx = random.floats(static_cast<size_t>(T * D));
    std::vector<std::vector<int32_t>> tokens_of(12);
    for (int64_t t = 0; t < T; ++t)  // some rows busy, some with no token at all
      if (const int64_t r = random.below(14); r < 11)
        tokens_of[static_cast<size_t>(r < 9 ? r % 4 : r)].push_back(static_cast<int32_t>(t));
    std::vector<int32_t> row, begin{0}, tokens;
    for (size_t r = 0; r < tokens_of.size(); ++r) {
      if (tokens_of[r].empty()) continue;
      row.push_back(static_cast<int32_t>(r) + 100);
      tokens.insert(tokens.end(), tokens_of[r].begin(), tokens_of[r].end());
      begin.push_back(static_cast<int32_t>(tokens.size()));
    }
    std::vector<float> want(12 * static_cast<size_t>(D),
                            7.f);  // rows that are not named keep what they hold
    const DeviceArray<float> dx_on_device(ops(), dx);
    DeviceArray<float> dw(ops(), want);
    const DeviceArray<int32_t> row_d(ops(), row), begin_d(ops(), begin), tokens_d(ops(), tokens);
    ops().embedding_bwd(nullptr,
                        {dx_on_device.data(), dw.data(), D, 100, static_cast<int64_t>(row.size()),
                         row_d.data(), begin_d.data(), tokens_d.data(), leaves});
    for (size_t i = 0; i < row.size(); ++i)
      for (int64_t d = 0; d < D; ++d) {
        std::vector<float> node(static_cast<size_t>(leaves.count), 0.f);
        for (int32_t j = begin[i]; j < begin[i + 1]; ++j) {
          const int32_t t = tokens[static_cast<size_t>(j)];
          int l = 0;
          while (t >= leaves.begin[l + 1]) ++l;
          node[static_cast<size_t>(l)] += dx[static_cast<size_t>(t * D + d)];
        }
        for (size_t n = node.size() / 2; n > 0; n /= 2)
          for (size_t k = 0; k < n; ++k) node[k] = node[2 * k] + node[2 * k + 1];
        want[static_cast<size_t>((row[i] - 100) * D + d)] = node[0];
      }
    // Plain fp32 additions in a stated order: the same bits on every backend.
    EXPECT_TRUE(same_bits(text(leaves), dw.host(), want));
  }
}

// ---- gather, scatter

TEST_P(Rows, GatherAndScatterMoveWholeRows) {
  RLK_NEEDS(gather_rows);
  RLK_NEEDS(scatter_rows);
  for (const int64_t words : {1, 3, 4, 64, 1000}) {
    Random random(37);
    const int64_t rows = 40;
    std::vector<uint32_t> x;
    for (int64_t i = 0; i < rows * words; ++i)
      x.push_back(static_cast<uint32_t>(random.below(int64_t{1} << 32)));
    std::vector<int32_t> index;
    for (int32_t i = 0; i < rows; ++i)
      index.push_back(i % 7 == 3 ? -1 : (i * 11 + 5) % static_cast<int32_t>(rows));
    const DeviceArray<uint32_t> x_d(ops(), x);
    const DeviceArray<int32_t> index_d(ops(), index);
    DeviceArray<uint32_t> gathered(ops(), x.size()), scattered(ops(), x.size());
    ops().gather_rows(nullptr, {x_d.data(), gathered.data(), index_d.data(), rows, words * 4});
    ops().scatter_rows(nullptr, {x_d.data(), scattered.data(), index_d.data(), rows, words * 4});
    std::vector<uint32_t> want_gathered(x.size()), want_scattered(x.size(), 0xffffffffu);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t w = 0; w < words; ++w) {
        const int64_t at = index[static_cast<size_t>(i)];
        if (at < 0) continue;
        want_gathered[static_cast<size_t>(i * words + w)] = x[static_cast<size_t>(at * words + w)];
        want_scattered[static_cast<size_t>(at * words + w)] = x[static_cast<size_t>(i * words + w)];
      }
    EXPECT_TRUE(same_bits("gather", gathered.host(), want_gathered));
    EXPECT_TRUE(same_bits("scatter", scattered.host(), want_scattered));
  }
}

TEST_P(Rows, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  const NormBwdData norm({700, 128});
  const NormWgradData wgrad(1032, leaves_of({3, 1, 0, 2}));
  const QkBwdData qk({8, 2, 1, 64, 0}, leaves_of({1, 0, 2, 1}));
  const NormResult y = run_norm(cpu_ops(1), norm, true);
  const std::vector<float> dx = run_norm_bwd(cpu_ops(1), norm, true),
                           dw = run_norm_wgrad(cpu_ops(1), wgrad);
  const QkGradients dqk = run_qk_bwd(cpu_ops(1), qk);
  for (const int threads : {2, 5}) {
    EXPECT_TRUE(same_bits("rms_norm", run_norm(cpu_ops(threads), norm, true).y, y.y));
    EXPECT_TRUE(same_bits("rms_norm_bwd", run_norm_bwd(cpu_ops(threads), norm, true), dx));
    EXPECT_TRUE(same_bits("rms_norm_wgrad", run_norm_wgrad(cpu_ops(threads), wgrad), dw));
    EXPECT_TRUE(same_bits("qk_norm_rope_bwd", run_qk_bwd(cpu_ops(threads), qk).q_dw, dqk.q_dw));
  }
  cpu_ops(1);
}

TEST_P(Rows, RefusesShapesOutsideItsContract) {
  RLK_NEEDS(rms_norm);
  RLK_NEEDS(rms_norm_wgrad);
  RLK_NEEDS(swiglu);
  RLK_NEEDS(gather_rows);
  const NormData d({2, 64});
  DeviceArray<bf16> x(ops(), d.x), w(ops(), d.w), y(ops(), d.x.size());
  EXPECT_THROW(ops().rms_norm(
                   nullptr, {x.data(), nullptr, nullptr, w.data(), y.data(), nullptr, 2, 60, kEps}),
               Error);
  EXPECT_THROW(ops().swiglu(nullptr, {x.data(), y.data(), 1, 12, 1}), Error);
  EXPECT_THROW(ops().gather_rows(nullptr, {x.data(), y.data(), nullptr, 1, 6}), Error);
  Leaves odd = leaves_of({1, 1});
  odd.begin[1] = 63;
  NormWgradData bad(64, leaves_of({2}));
  bad.leaves = odd;
  EXPECT_THROW(run_norm_wgrad(ops(), bad), Error);
  bad.leaves.count = 3;
  EXPECT_THROW(run_norm_wgrad(ops(), bad), Error);
}

RLK_FOR_EACH_BACKEND(Rows);

}  // namespace
}  // namespace rlk::test
