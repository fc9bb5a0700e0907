// attention_delta, attention_bwd_dq, attention_bwd_dkv: error against fp64 gradients (themselves
// checked by finite differences), and no way of cutting the rows, heads or batch changes a bit.

#include "device/attention_cases.h"
#include "device/cpu/simd.h"
#include "ref/attention.h"

namespace rlk::test {
namespace {

class AttentionBwd : public OpTest {};

std::vector<AttentionCase> cases(bool cuda) {
  std::vector<AttentionCase> all;
  for (const AttentionCase& c : attention_cases(cuda))
    if (*std::max_element(c.lengths.begin(), c.lengths.end()) <= 1100) all.push_back(c);
  return all;
}

// Forward results that the backward starts from, once a case.
struct Saved {
  std::vector<bf16> o;
  std::vector<float> lse, delta;
};

Saved forward(const Ops& ops, const AttentionData& d) {
  const AttentionCase& c = d.c;
  const PagedCache cache(ops, d, {});
  const DeviceArray<bf16> q(ops, d.q), d_o(ops, d.d_o);
  const std::vector<AttentionSegment> whole = d.whole();
  const DeviceArray<AttentionSegment> segments(ops, whole);
  DeviceArray<bf16> o(ops, d.q.size());
  DeviceArray<float> lse(ops, static_cast<size_t>(d.rows() * c.H)),
      delta(ops, static_cast<size_t>(d.rows() * c.H));
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  AttentionArgs args{q.data(),
                     cache.view(),
                     segments.data(),
                     static_cast<int>(whole.size()),
                     longest,
                     longest,
                     o.data(),
                     lse.data(),
                     d.rows(),
                     c.H,
                     c.KH,
                     c.Dh,
                     d.scale(),
                     nullptr};
  const DeviceBytes workspace(ops, ops.attention_workspace(args));
  args.workspace = workspace.data();
  ops.attention(nullptr, args);
  ops.attention_delta(nullptr, {o.data(), d_o.data(), delta.data(), d.rows(), c.H, c.Dh});
  return {o.host(), lse.host(), delta.host()};
}

struct Gradients {
  std::vector<bf16> dq, dk, dv;
};

// Runs both passes over the segments; rows land at segment.row.
Gradients backward(const Ops& ops, const AttentionData& d, const Saved& saved,
                   const std::vector<AttentionSegment>& segments) {
  const AttentionCase& c = d.c;
  const DeviceArray<bf16> q(ops, d.q), k(ops, d.k), v(ops, d.v), d_o(ops, d.d_o);
  const DeviceArray<float> lse(ops, saved.lse), delta(ops, saved.delta);
  const DeviceArray<int32_t> begin(ops, std::vector<int32_t>(d.begin.begin(), d.begin.end()));
  const DeviceArray<AttentionSegment> on_device(ops, segments);
  DeviceArray<bf16> dq(ops, d.q.size()), dk(ops, d.k.size()), dv(ops, d.v.size());
  AttentionBwdArgs args{};
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.d_o = d_o.data();
  args.lse = lse.data(), args.delta = delta.data(), args.seq_begin = begin.data();
  args.segments = on_device.data(), args.n_segments = static_cast<int>(segments.size());
  for (const AttentionSegment& s : segments) {
    args.max_len = std::max(args.max_len, s.len);
    args.max_context = std::max(args.max_context, c.lengths[static_cast<size_t>(s.seq)]);
  }
  args.dq = dq.data(), args.dk = dk.data(), args.dv = dv.data();
  args.S = d.rows(), args.H = c.H, args.KH = c.KH, args.Dh = c.Dh, args.scale = d.scale();
  const DeviceBytes workspace(ops, ops.attention_bwd_workspace(args));
  args.workspace = workspace.data();
  ops.attention_bwd_dq(nullptr, args);
  ops.attention_bwd_dkv(nullptr, args);
  return {dq.host(), dk.host(), dv.host()};
}

::testing::AssertionResult same(const std::string& what, const Gradients& a, const Gradients& b) {
  if (auto r = same_bits(what + " dq", a.dq, b.dq); !r) return r;
  if (auto r = same_bits(what + " dk", a.dk, b.dk); !r) return r;
  return same_bits(what + " dv", a.dv, b.dv);
}

ref::Matrix head(const std::vector<bf16>& x, const AttentionData& d, size_t seq, int heads, int h) {
  ref::Matrix m(d.c.lengths[seq], d.c.Dh);
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t i = 0; i < m.columns; ++i)
      m.at(r, i) = value(x[static_cast<size_t>(((d.begin[seq] + r) * heads + h) * d.c.Dh + i)]);
  return m;
}

void add_head(const ref::Matrix& from, const AttentionData& d, size_t seq, int heads, int h,
              std::vector<double>& to) {
  for (int64_t r = 0; r < from.rows; ++r)
    for (int64_t i = 0; i < from.columns; ++i)
      to[static_cast<size_t>(((d.begin[seq] + r) * heads + h) * d.c.Dh + i)] += from.at(r, i);
}

TEST(AttentionReference, GradientsAgreeWithFiniteDifferences) {
  const int n = 9, Dh = 4;
  Random random(3);
  const auto matrix = [&] {
    ref::Matrix m(n, Dh);
    for (double& x : m.x) x = random.normal();
    return m;
  };
  ref::Matrix q = matrix(), k = matrix(), v = matrix();
  const ref::Matrix d_o = matrix();
  const double scale = 0.6;
  const auto loss = [&] {
    const ref::Matrix o = ref::weighted_values(ref::attention_weights(q, k, scale, nullptr), v);
    double sum = 0;
    for (size_t i = 0; i < o.x.size(); ++i) sum += o.x[i] * d_o.x[i];
    return sum;
  };
  const ref::AttentionGradients g = ref::attention_gradients(q, k, v, d_o, scale);
  const auto check = [&](ref::Matrix& x, const ref::Matrix& gradient) {
    for (size_t i = 0; i < x.x.size(); ++i) {
      const double at = x.x[i], h = 1e-5;
      x.x[i] = at + h;
      const double up = loss();
      x.x[i] = at - h;
      const double down = loss();
      x.x[i] = at;
      EXPECT_NEAR(gradient.x[i], (up - down) / (2 * h), 1e-8) << i;  // h^2 times third derivatives
    }
  };
  check(q, g.dq), check(k, g.dk), check(v, g.dv);
}

// P and dS are rounded to bf16 (2^-8 each of their terms), o inside delta likewise, and the result
// once.
constexpr Tolerance kGradient{3 * kBf16Half, 1e-3};

TEST_P(AttentionBwd, IsCloseToFp64) {
  RLK_NEEDS(attention_bwd_dq);
  RLK_NEEDS(attention_bwd_dkv);
  for (const AttentionCase& c : cases(is_cuda())) {
    const AttentionData d(c);
    const Gradients got = backward(ops(), d, forward(ops(), d), d.whole());
    std::vector<double> dq(got.dq.size()), dk(got.dk.size()), dv(dk);
    std::vector<double> dq_size(dq), dk_size(dk), dv_size(dv);
    for (size_t s = 0; s < c.lengths.size(); ++s)
      for (int h = 0; h < c.H; ++h) {
        const int kh = h / (c.H / c.KH);
        const ref::AttentionGradients g = ref::attention_gradients(
            head(d.q, d, s, c.H, h), head(d.k, d, s, c.KH, kh), head(d.v, d, s, c.KH, kh),
            head(d.d_o, d, s, c.H, h), d.scale());
        add_head(g.dq, d, s, c.H, h, dq), add_head(g.dq_size, d, s, c.H, h, dq_size);
        add_head(g.dk, d, s, c.KH, kh, dk), add_head(g.dk_size, d, s, c.KH, kh, dk_size);
        add_head(g.dv, d, s, c.KH, kh, dv), add_head(g.dv_size, d, s, c.KH, kh, dv_size);
      }
    EXPECT_TRUE(close_to("dq " + c.text(), got.dq, dq, kGradient, dq_size));
    EXPECT_TRUE(close_to("dk " + c.text(), got.dk, dk, kGradient, dk_size));
    EXPECT_TRUE(close_to("dv " + c.text(), got.dv, dv, kGradient, dv_size));
  }
}

TEST_P(AttentionBwd, RowsInPiecesEqualRowsTogether) {
  RLK_NEEDS(attention_bwd_dq);
  RLK_NEEDS(attention_bwd_dkv);
  for (const AttentionCase& c : cases(is_cuda())) {
    const AttentionData d(c);
    const Saved saved = forward(ops(), d);
    const Gradients whole = backward(ops(), d, saved, d.whole());
    for (const int step : {1, 17, 64, 100}) {
      std::vector<AttentionSegment> pieces;
      for (size_t s = 0; s < c.lengths.size(); ++s)
        for (int p = 0; p < c.lengths[s]; p += step)
          pieces.push_back(
              {static_cast<int>(s), p, std::min(step, c.lengths[s] - p), d.begin[s] + p});
      EXPECT_TRUE(same(c.text() + " pieces of " + std::to_string(step),
                       backward(ops(), d, saved, pieces), whole));
      std::reverse(pieces.begin(), pieces.end());
      EXPECT_TRUE(same(c.text() + " backwards", backward(ops(), d, saved, pieces), whole));
    }
  }
}

TEST_P(AttentionBwd, SequenceAloneEqualsSequenceInBatch) {
  RLK_NEEDS(attention_bwd_dq);
  RLK_NEEDS(attention_bwd_dkv);
  for (const AttentionCase& c : cases(is_cuda())) {
    const AttentionData d(c);
    const Gradients whole = backward(ops(), d, forward(ops(), d), d.whole());
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      AttentionData one = d;
      one.c.lengths = {c.lengths[s]};
      one.begin = {0, c.lengths[s]};
      const auto part = [&](const std::vector<bf16>& x, int heads) {
        return std::vector<bf16>(x.begin() + int64_t{d.begin[s]} * heads * c.Dh,
                                 x.begin() + int64_t{d.begin[s + 1]} * heads * c.Dh);
      };
      one.q = part(d.q, c.H), one.k = part(d.k, c.KH), one.v = part(d.v, c.KH),
      one.d_o = part(d.d_o, c.H);
      EXPECT_TRUE(same(c.text() + " sequence " + std::to_string(s),
                       backward(ops(), one, forward(ops(), one), one.whole()),
                       {part(whole.dq, c.H), part(whole.dk, c.KH), part(whole.dv, c.KH)}));
    }
  }
}

TEST_P(AttentionBwd, LaterTokensDoNotTouchAnEarlierQuery) {
  RLK_NEEDS(attention_bwd_dq);
  const AttentionData d({"prefix", 2, 1, 64, {200}});
  AttentionData shorter({"prefix", 2, 1, 64, {150}});
  const auto prefix = [](const std::vector<bf16>& x, size_t n) {
    return std::vector<bf16>(x.begin(), x.begin() + static_cast<int64_t>(n));
  };
  shorter.q = prefix(d.q, shorter.q.size()), shorter.k = prefix(d.k, shorter.k.size());
  shorter.v = prefix(d.v, shorter.v.size()), shorter.d_o = prefix(d.d_o, shorter.d_o.size());
  const Gradients a = backward(ops(), d, forward(ops(), d), d.whole());
  const Gradients b = backward(ops(), shorter, forward(ops(), shorter), shorter.whole());
  EXPECT_TRUE(same_bits("dq", prefix(a.dq, b.dq.size()), b.dq));
  EXPECT_FALSE(
      same_bits("dk", prefix(a.dk, b.dk.size()), b.dk));  // later queries do touch an earlier key
}

TEST_P(AttentionBwd, HeadsAloneEqualHeadsTogether) {
  RLK_NEEDS(attention_bwd_dq);
  RLK_NEEDS(attention_bwd_dkv);
  const AttentionData d({"heads", 16, 8, 64, {130, 9}});
  const Gradients whole = backward(ops(), d, forward(ops(), d), d.whole());
  for (int kh = 0; kh < 8; ++kh) {
    const auto part = [&](const std::vector<bf16>& x, int heads, int n) {
      std::vector<bf16> out;
      for (int64_t r = 0; r < d.rows(); ++r)
        out.insert(out.end(), x.begin() + (r * heads + kh * n) * 64,
                   x.begin() + (r * heads + (kh + 1) * n) * 64);
      return out;
    };
    AttentionData one = d;
    one.c.H = 2, one.c.KH = 1;
    one.q = part(d.q, 16, 2), one.k = part(d.k, 8, 1), one.v = part(d.v, 8, 1),
    one.d_o = part(d.d_o, 16, 2);
    EXPECT_TRUE(same("KV head " + std::to_string(kh),
                     backward(ops(), one, forward(ops(), one), one.whole()),
                     {part(whole.dq, 16, 2), part(whole.dk, 8, 1), part(whole.dv, 8, 1)}));
  }
}

TEST_P(AttentionBwd, DeltaIsTheRowsDotProduct) {
  RLK_NEEDS(attention_delta);
  const AttentionData d({"delta", 4, 2, 128, {77}});
  const Saved saved = forward(ops(), d);
  std::vector<double> want(saved.delta.size()), size(want);
  for (size_t i = 0; i < saved.o.size(); ++i) {
    want[i / 128] += value(saved.o[i]) * value(d.d_o[i]);
    size[i / 128] += std::abs(value(saved.o[i]) * value(d.d_o[i]));
  }
  EXPECT_TRUE(close_to("delta", saved.delta, want, {1e-6}, size));  // an fp32 sum of 128 terms
}

TEST_P(AttentionBwd, RunsAlikeOnAnyThreadCount) {
  RLK_NEEDS(attention_bwd_dq);
  RLK_NEEDS(attention_bwd_dkv);
  const AttentionData d({"threads", 16, 8, 64, {130, 257}});
  const Saved saved = forward(ops(), d);
  const Gradients once = backward(ops(), d, saved, d.whole());
  EXPECT_TRUE(same("again", backward(ops(), d, saved, d.whole()), once));
  if (is_cuda()) return;
  for (const int threads : {2, 5})
    EXPECT_TRUE(same("threads " + std::to_string(threads),
                     backward(cpu_ops(threads), d, saved, d.whole()), once));
  cpu_ops(1);
}

// dK walks the query tiles in order, and inside a tile the heads: another order is caught (CPU).
// Rounding to bf16 hides most of a different order, so many keys are looked at.
TEST_P(AttentionBwd, CpuOrderOfAKeysGradientIsTilesThenHeads) {
  if (is_cuda()) GTEST_SKIP() << "tensor cores have their own chains";
  const AttentionData d({"order", 4, 1, 64, {300}});
  const Saved saved = forward(ops(), d);
  const Gradients got = backward(ops(), d, saved, d.whole());
  const int Dh = 64, H = 4, keys = 40;
  const auto at = [](const std::vector<bf16>& x, int64_t i) {
    return to_float(x[static_cast<size_t>(i)]);
  };
  const auto dot = [&](const std::vector<bf16>& a, int64_t a_at, const std::vector<bf16>& b,
                       int64_t b_at) {
    float s = 0;
    for (int i = 0; i < Dh; ++i) s = std::fma(at(a, a_at + i), at(b, b_at + i), s);
    return s;
  };
  const auto dv_of = [&](int key, bool heads_outside) {
    std::vector<float> dv(64, 0.f);
    const auto add = [&](int q, int h) {
      const int64_t row = int64_t{q} * H + h;
      const float s = dot(d.q, row * Dh, d.k, int64_t{key} * Dh);
      const float p =
          cpu::exp2_1(std::fma(s, d.scale() * 1.44269502f, -saved.lse[static_cast<size_t>(row)]));
      for (int i = 0; i < Dh; ++i)
        dv[static_cast<size_t>(i)] =
            std::fma(to_float(to_bf16(p)), at(d.d_o, row * Dh + i), dv[static_cast<size_t>(i)]);
    };
    if (heads_outside) {
      for (int h = 0; h < H; ++h)
        for (int q = key; q < 300; ++q) add(q, h);
    } else {
      for (int tile = 0; tile < 300; tile += 128)
        for (int h = 0; h < H; ++h)
          for (int q = std::max(key, tile); q < std::min(300, tile + 128); ++q) add(q, h);
    }
    std::vector<bf16> out;
    for (const float x : dv) out.push_back(to_bf16(x));
    return out;
  };
  const std::vector<bf16> rows(got.dv.begin(), got.dv.begin() + keys * Dh);
  std::vector<bf16> right, wrong;
  for (int key = 0; key < keys; ++key) {
    const std::vector<bf16> a = dv_of(key, false), b = dv_of(key, true);
    right.insert(right.end(), a.begin(), a.end());
    wrong.insert(wrong.end(), b.begin(), b.end());
  }
  EXPECT_TRUE(same_bits("tiles then heads", rows, right));
  EXPECT_FALSE(same_bits("heads then tiles", rows, wrong));
}

RLK_FOR_EACH_BACKEND(AttentionBwd);

}  // namespace
}  // namespace rlk::test
