// attention: error against fp64; one shot = chunked = token by token = any page layout, shards and
// batch.

#include "ref/attention.h"

#include "device/attention_cases.h"
#include "device/cpu/simd.h"

namespace rlk::test {
namespace {

class Attention : public OpTest {};

struct Result {
  std::vector<bf16> o;
  std::vector<float> lse;
};

// Runs the segments in one call; rows that no segment names keep the poison.
Result run(const Ops& ops, const AttentionData& data, const std::vector<AttentionSegment>& segments,
           const CacheLayout& layout = {}) {
  const AttentionCase& c = data.c;
  const PagedCache cache(ops, data, layout);
  const DeviceArray<bf16> q(ops, data.q);
  const DeviceArray<AttentionSegment> on_device(ops, segments);
  DeviceArray<bf16> o(ops, data.q.size());
  DeviceArray<float> lse(ops, static_cast<size_t>(data.rows() * c.H));
  AttentionArgs args{q.data(),
                     cache.view(),
                     on_device.data(),
                     static_cast<int>(segments.size()),
                     0,
                     0,
                     o.data(),
                     lse.data(),
                     data.rows(),
                     c.H,
                     c.KH,
                     c.Dh,
                     data.scale(),
                     nullptr};
  for (const AttentionSegment& s : segments) {
    args.max_len = std::max(args.max_len, s.len);
    args.max_context = std::max(args.max_context, s.position + s.len);
  }
  const DeviceBytes workspace(ops, ops.attention_workspace(args));
  args.workspace = workspace.data();
  ops.attention(nullptr, args);
  return {o.host(), lse.host()};
}

::testing::AssertionResult same(const std::string& what, const Result& a, const Result& b) {
  const auto o = same_bits(what + " o", a.o, b.o);
  return o ? same_bits(what + " lse", a.lse, b.lse) : o;
}

ref::Matrix head(const std::vector<bf16>& x, const AttentionData& d, size_t seq, int heads, int h) {
  ref::Matrix m(d.c.lengths[seq], d.c.Dh);
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t i = 0; i < m.columns; ++i)
      m.at(r, i) = value(x[static_cast<size_t>(((d.begin[seq] + r) * heads + h) * d.c.Dh + i)]);
  return m;
}

// Pieces of `step` positions of every sequence, all in one call.
std::vector<AttentionSegment> pieces(const AttentionData& d, int step) {
  std::vector<AttentionSegment> s;
  for (size_t i = 0; i < d.c.lengths.size(); ++i)
    for (int p = 0; p < d.c.lengths[i]; p += step)
      s.push_back({static_cast<int>(i), p, std::min(step, d.c.lengths[i] - p), d.begin[i] + p});
  return s;
}

// P and the output are rounded to bf16, each by at most 2^-8 of its value; the score chains are
// exact beside that.
constexpr Tolerance kAttention{2 * kBf16Half, 1e-3};

TEST_P(Attention, IsCloseToFp64) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    const AttentionData d(c);
    const Result got = run(ops(), d, d.whole());
    std::vector<double> want(got.o.size()), size(got.o.size()), want_lse(got.lse.size());
    for (size_t s = 0; s < c.lengths.size(); ++s)
      for (int h = 0; h < c.H; ++h) {
        std::vector<double> lse;
        const ref::Matrix v = head(d.v, d, s, c.KH, h / (c.H / c.KH));
        const ref::Matrix p = ref::attention_weights(
            head(d.q, d, s, c.H, h), head(d.k, d, s, c.KH, h / (c.H / c.KH)), d.scale(), &lse);
        ref::Matrix v_size = v;
        for (double& x : v_size.x) x = std::abs(x);
        const ref::Matrix o = ref::weighted_values(p, v), o_size = ref::weighted_values(p, v_size);
        for (int64_t r = 0; r < o.rows; ++r) {
          const auto row = static_cast<size_t>((d.begin[s] + r) * c.H + h);
          want_lse[row] = lse[static_cast<size_t>(r)];
          for (int64_t i = 0; i < c.Dh; ++i) {
            want[row * static_cast<size_t>(c.Dh) + static_cast<size_t>(i)] = o.at(r, i);
            size[row * static_cast<size_t>(c.Dh) + static_cast<size_t>(i)] = o_size.at(r, i);
          }
        }
      }
    EXPECT_TRUE(close_to("attention o " + c.text(), got.o, want, kAttention, size));
    // fp32 scores of a few tens: a few 2^-24 of them.
    EXPECT_TRUE(
        close_to("attention lse " + c.text(), got.lse, want_lse, {is_cuda() ? 2e-5 : 2e-6, 1.0}));
  }
}

TEST_P(Attention, OneShotEqualsChunkedEqualsTokenByToken) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    const AttentionData d(c);
    const Result whole = run(ops(), d, d.whole());
    for (const int step : {1, 5, 64, 100, 128, 1000}) {
      EXPECT_TRUE(same(c.text() + " in pieces of " + std::to_string(step),
                       run(ops(), d, pieces(d, step)), whole));
    }
  }
}

TEST_P(Attention, SegmentAloneEqualsSegmentInBatch) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    const AttentionData d(c);
    const Result whole = run(ops(), d, d.whole());
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      const int n = c.lengths[s];
      for (const AttentionSegment part :
           {AttentionSegment{static_cast<int>(s), n - 1, 1, d.begin[s] + n - 1},
            AttentionSegment{static_cast<int>(s), n / 2, n - n / 2, d.begin[s] + n / 2}}) {
        const Result alone = run(ops(), d, {part});
        const int64_t first = int64_t{part.row} * c.H * c.Dh,
                      end = first + int64_t{part.len} * c.H * c.Dh;
        EXPECT_TRUE(same_bits<bf16>(
            c.text() + " sequence " + std::to_string(s) + " from " + std::to_string(part.position),
            {alone.o.begin() + first, alone.o.begin() + end},
            {whole.o.begin() + first, whole.o.begin() + end}));
      }
    }
  }
}

TEST_P(Attention, PageLayoutAndShardsChangeNoBit) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    const AttentionData d(c);
    const Result plain = run(ops(), d, d.whole());
    int i = 0;
    for (const CacheLayout& layout :
         {CacheLayout{16, 1, false, 1}, CacheLayout{16, 8, false, 2}, CacheLayout{32, 3, true, 3},
          CacheLayout{128, 2, true, 4}, CacheLayout{64, 4, false, 5}})
      EXPECT_TRUE(same(c.text() + " layout " + std::to_string(i++),
                       run(ops(), d, d.whole(), layout), plain));
    EXPECT_TRUE(
        same(c.text() + " token by token", run(ops(), d, pieces(d, 1), {16, 2, false, 6}), plain));
  }
}

TEST_P(Attention, HeadsAloneEqualHeadsTogether) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    if (c.KH == 1) continue;
    const AttentionData d(c);
    const Result whole = run(ops(), d, d.whole());
    const int group = c.H / c.KH;
    for (int kh = 0; kh < c.KH; ++kh) {  // a rank that owns one KV head
      AttentionData part = d;
      part.c.H = group, part.c.KH = 1;
      part.q.clear(), part.k.clear(), part.v.clear();
      std::vector<bf16> want;
      for (int64_t r = 0; r < d.rows(); ++r) {
        const auto copy = [&](const std::vector<bf16>& from, int heads, int first, int n,
                              std::vector<bf16>& to) {
          to.insert(to.end(), from.begin() + (r * heads + first) * c.Dh,
                    from.begin() + (r * heads + first + n) * c.Dh);
        };
        copy(d.q, c.H, kh * group, group, part.q);
        copy(d.k, c.KH, kh, 1, part.k);
        copy(d.v, c.KH, kh, 1, part.v);
        copy(whole.o, c.H, kh * group, group, want);
      }
      EXPECT_TRUE(same_bits(c.text() + " KV head " + std::to_string(kh),
                            run(ops(), part, part.whole()).o, want));
    }
  }
}

TEST_P(Attention, RunsAlikeOnAnyThreadCount) {
  RLK_NEEDS(attention);
  for (const AttentionCase& c : attention_cases(is_cuda())) {
    const AttentionData d(c);
    const Result once = run(ops(), d, d.whole());
    EXPECT_TRUE(same(c.text() + " again", run(ops(), d, d.whole()), once));
    if (is_cuda()) continue;
    for (const int threads : {2, 5})
      EXPECT_TRUE(same(c.text() + " threads " + std::to_string(threads),
                       run(cpu_ops(threads), d, d.whole()), once));
    cpu_ops(1);
  }
}

TEST_P(Attention, NanInOneKeyReachesOnlyTheRowsThatSeeIt) {
  RLK_NEEDS(attention);
  AttentionData d({"nan", 4, 1, 64, {200}});
  const Result clean = run(ops(), d, d.whole());
  const int bad = 150;
  d.v[static_cast<size_t>(bad * d.c.Dh)] = {0x7fc0};
  const Result got = run(ops(), d, d.whole());
  const int64_t row = int64_t{d.c.H} * d.c.Dh;
  // A tensor-core tile multiplies what a row does not see by 0: there the NaN reaches its own tile
  // of keys, which no run with a NaN survives anyway.
  const int before = is_cuda() ? bad / 128 * 128 : bad;
  EXPECT_TRUE(same_bits<bf16>("rows before the NaN", {got.o.begin(), got.o.begin() + before * row},
                              {clean.o.begin(), clean.o.begin() + before * row}));
  for (int64_t r = bad; r < 200; ++r)
    EXPECT_TRUE(std::isnan(value(got.o[static_cast<size_t>(r * row)]))) << r;
}

TEST_P(Attention, RefusesShapesOutsideItsContract) {
  RLK_NEEDS(attention);
  const AttentionData d({"refused", 4, 2, 64, {8}});
  const PagedCache cache(ops(), d, {});
  DeviceArray<bf16> q(ops(), d.q), o(ops(), d.q.size());
  const DeviceArray<AttentionSegment> segments(ops(), d.whole());
  const auto refused = [&](int H, int KH, int Dh) {
    const AttentionArgs args{
        q.data(), cache.view(), segments.data(), 1, 8, 8, o.data(), nullptr, 8, H, KH,
        Dh,       1.f,          nullptr};
    EXPECT_THROW(ops().attention(nullptr, args), Error) << H << " " << KH << " " << Dh;
  };
  refused(3, 2, 64);
  refused(9, 1, 64);
  refused(4, 2, 24);
}

// ---- The rule itself, stated one key at a time (CPU)

// What R4 fixes; a changed figure is a different rule.
struct Rule {
  int tile = 128;
  int split = 1024;
  float lag = 8.f;
  int lanes = 8;
};

std::vector<bf16> stated(const AttentionData& d, size_t seq, int h, int position,
                         const Rule& rule) {
  const AttentionCase& c = d.c;
  const int kh = h / (c.H / c.KH);
  const auto at = [&](const std::vector<bf16>& x, int heads, int head, int p, int i) {
    return to_float(x[static_cast<size_t>(((d.begin[seq] + p) * heads + head) * c.Dh + i)]);
  };
  const float scale = d.scale() * 1.44269502f;
  std::vector<float> merged, o;
  float M = 0, L = 0;
  for (int first = 0; first <= position; first += rule.split) {
    float m = -INFINITY;
    std::vector<float> l(static_cast<size_t>(rule.lanes));
    o.assign(static_cast<size_t>(c.Dh), 0.f);
    const int end = std::min(position + 1, first + rule.split);
    for (int key0 = first; key0 < end; key0 += rule.tile) {
      std::vector<float> s;
      for (int k = key0; k < std::min(end, key0 + rule.tile); ++k) {
        s.push_back(0.f);
        for (int i = 0; i < c.Dh; ++i)
          s.back() = std::fma(at(d.q, c.H, h, position, i), at(d.k, c.KH, kh, k, i), s.back());
      }
      const float t = *std::max_element(s.begin(), s.end()) * scale;
      if (t > m + rule.lag) {
        const float rescale = cpu::exp2_1(m - t);
        m = t;
        for (float& x : l) x *= rescale;
        for (float& x : o) x *= rescale;
      }
      for (size_t j = 0; j < s.size(); ++j) {
        const float p = cpu::exp2_1(std::fma(s[j], scale, -m));
        l[j % l.size()] += p;
        for (int i = 0; i < c.Dh; ++i) {
          float& x = o[static_cast<size_t>(i)];
          x = std::fma(to_float(to_bf16(p)), at(d.v, c.KH, kh, key0 + static_cast<int>(j), i), x);
        }
      }
    }
    for (size_t n = l.size() / 2; n > 0; n /= 2)
      for (size_t i = 0; i < n; ++i) l[i] = l[2 * i] + l[2 * i + 1];
    if (first == 0) {
      merged = o, M = m, L = l[0];
      continue;
    }
    const float top = std::max(M, m), a = cpu::exp2_1(M - top), b = cpu::exp2_1(m - top);
    M = top;
    L = std::fma(l[0], b, L * a);
    for (size_t i = 0; i < o.size(); ++i) merged[i] = std::fma(o[i], b, merged[i] * a);
  }
  std::vector<bf16> out;
  for (const float x : merged) out.push_back(to_bf16(x * (1.f / L)));
  return out;
}

TEST_P(Attention, CpuFollowsTheRuleAndEachOtherRuleIsCaught) {
  if (is_cuda()) GTEST_SKIP() << "tensor cores have their own chains";
  const AttentionData d({"rule", 2, 1, 64, {2300}, 12.f});
  const Result got = run(ops(), d, d.whole());
  std::vector<bf16> checked;
  std::vector<std::vector<bf16>> other(4);
  const Rule rules[4] = {
      {64, 1024, 8.f, 8}, {128, 512, 8.f, 8}, {128, 1024, 0.f, 8}, {128, 1024, 8.f, 4}};
  for (int p = 0; p < 2300; p += 23)
    for (int h = 0; h < 2; ++h) {
      const auto at = got.o.begin() + (p * 2 + h) * 64;
      checked.insert(checked.end(), at, at + 64);
      const std::vector<bf16> want = stated(d, 0, h, p, {});
      EXPECT_TRUE(same_bits<bf16>("position " + std::to_string(p), {at, at + 64}, want));
      for (size_t i = 0; i < 4; ++i) {
        const std::vector<bf16> row = stated(d, 0, h, p, rules[i]);
        other[i].insert(other[i].end(), row.begin(), row.end());
      }
    }
  EXPECT_FALSE(same_bits("tiles of 64", checked, other[0]));
  EXPECT_FALSE(same_bits("splits of 512", checked, other[1]));
  EXPECT_FALSE(same_bits("maximum moved at every tile", checked, other[2]));
  EXPECT_FALSE(same_bits("4 partial sums", checked, other[3]));
}

RLK_FOR_EACH_BACKEND(Attention);

}  // namespace
}  // namespace rlk::test
