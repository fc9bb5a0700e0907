// qk_norm_rope, its backward, and kv_write.

#include "device/leaves.h"
#include "device/rows_cases.h"

namespace rlk::test {
namespace {

class Rope : public OpTest {};

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

TEST_P(Rope, QkNormRopeIsCloseToFp64) {
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

TEST_P(Rope, QkNormRopeRowAndSliceAloneEqualTogether) {
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

TEST_P(Rope, QkNormRopeIntoTheCacheEqualsKvWrite) {
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

TEST_P(Rope, QkNormRopeBwdIsCloseToFp64) {
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

TEST_P(Rope, QkNormRopeBwdSliceAndLeafAloneEqualTogether) {
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

TEST_P(Rope, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  const QkBwdData qk({8, 2, 1, 64, 0}, leaves_of({1, 0, 2, 1}));
  const QkGradients dqk = run_qk_bwd(cpu_ops(1), qk);
  for (const int threads : {2, 5})
    EXPECT_TRUE(same_bits("qk_norm_rope_bwd", run_qk_bwd(cpu_ops(threads), qk).q_dw, dqk.q_dw));
  cpu_ops(1);
}

RLK_FOR_EACH_BACKEND(Rope);

}  // namespace
}  // namespace rlk::test
