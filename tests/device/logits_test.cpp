// logits_support, logprob_stats, logprob_merge, logprob_bwd, sample, sample_merge: error against
// fp64; shards of any size, rows alone and columns in any order give the same bits.

#include "ref/logits.h"

#include <algorithm>
#include <array>
#include <limits>

#include "device/harness.h"

namespace rlk::test {
namespace {

class Logits : public OpTest {};

struct LogitsCase {
  int64_t T, padded, vocab;
  std::string text() const {
    return "T=" + std::to_string(T) + " V'=" + std::to_string(padded) +
           " V=" + std::to_string(vocab);
  }
};
std::vector<LogitsCase> logits_cases(bool cuda) {
  std::vector<LogitsCase> all = {
      {24, 1024, 1000}, {8, 1024, 1024}, {5, 2048, 259}, {2, 8192, 8003}};
  if (cuda) all.push_back({6, 152576, 151936});  // Qwen3
  return all;
}

// Rows with their own temperature, top-p, top-k and target; padding is NaN, which nothing may see.
struct LogitsData {
  LogitsCase c;
  std::vector<bf16> x;
  std::vector<float> inv_temp, top_p;
  std::vector<int32_t> top_k, target;
  std::vector<SampleKey> keys;

  explicit LogitsData(const LogitsCase& which, uint64_t seed = 41) : c(which) {
    Random random(seed);
    x = random.bf16s(static_cast<size_t>(c.T * c.padded), 4.f);
    const float temperatures[] = {1.f, 0.7f, 1.3f}, ps[] = {1.f, 0.95f, 0.3f, 0.99f};
    const int32_t ks[] = {-1, 0, 128, 1, 20};
    for (int64_t t = 0; t < c.T; ++t) {
      std::fill(x.begin() + t * c.padded + c.vocab, x.begin() + (t + 1) * c.padded, bf16{0x7fc0});
      inv_temp.push_back(1.f / temperatures[t % 3]);
      top_p.push_back(ps[t % 4]);
      top_k.push_back(ks[t % 5]);
      target.push_back(static_cast<int32_t>(random.below(c.vocab)));
      keys.push_back({sample_key(seed, 3), static_cast<uint32_t>(t % 2),
                      static_cast<uint32_t>(t % 3), static_cast<uint32_t>(t)});
    }
  }
  std::vector<double> row(int64_t t) const {
    std::vector<double> out;
    for (int64_t i = 0; i < c.vocab; ++i)
      out.push_back(value(x[static_cast<size_t>(t * c.padded + i)]));
    return out;
  }
  LogitsData one_row(int64_t t) const {
    LogitsData d = *this;
    const auto i = static_cast<size_t>(t);
    d.c.T = 1;
    d.x = {x.begin() + t * c.padded, x.begin() + (t + 1) * c.padded};
    d.inv_temp = {inv_temp[i]}, d.top_p = {top_p[i]}, d.top_k = {top_k[i]}, d.target = {target[i]},
    d.keys = {keys[i]};
    return d;
  }
  // The columns of `slices` slices from `first`, as a rank holds them.
  std::vector<bf16> shard(int first, int slices) const {
    std::vector<bf16> out;
    const int64_t rows = c.padded / 8;
    for (int64_t t = 0; t < c.T; ++t)
      out.insert(out.end(), x.begin() + t * c.padded + first * rows,
                 x.begin() + t * c.padded + (first + slices) * rows);
    return out;
  }
  LogitsView view(const bf16* at, int first = 0, int slices = 8) const {
    return {at, c.T, c.padded / 8 * slices, c.padded / 8, first, slices, c.vocab};
  }
};

struct Support {
  std::vector<uint32_t> threshold;
  int32_t error;
};

Support run_support(const Ops& ops, const LogitsData& d) {
  const DeviceArray<bf16> x(ops, d.x);
  const DeviceArray<float> inv_temp(ops, d.inv_temp), top_p(ops, d.top_p);
  const DeviceArray<int32_t> top_k(ops, d.top_k);
  DeviceArray<uint32_t> threshold(ops, static_cast<size_t>(d.c.T));
  DeviceArray<int32_t> error(ops, std::vector<int32_t>{0});
  SupportArgs args{d.view(x.data()), inv_temp.data(), top_p.data(), top_k.data(),
                   threshold.data(), error.data(),    nullptr};
  const DeviceBytes workspace(ops, ops.support_workspace(args));
  args.workspace = workspace.data();
  ops.logits_support(nullptr, args);
  return {threshold.host(), error.host()[0]};
}

TEST_P(Logits, SupportIsTheExactOne) {
  RLK_NEEDS(logits_support);
  int64_t undecided = 0, rows = 0;
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    const LogitsData d(c);
    const Support got = run_support(ops(), d);
    EXPECT_EQ(got.error, 0);
    for (int64_t t = 0; t < c.T; ++t, ++rows) {
      const auto i = static_cast<size_t>(t);
      double margin;
      const double floor = ref::support_floor(d.row(t), static_cast<double>(d.inv_temp[i]),
                                              static_cast<double>(d.top_p[i]), d.top_k[i], &margin);
      if (margin < 1e-6) {  // fp32 masses may lie on the other side
        ++undecided;
        continue;
      }
      const uint32_t want = floor == -INFINITY ? 0 : bf16_key(to_bf16(static_cast<float>(floor)));
      EXPECT_EQ(got.threshold[i], want)
          << c.text() << " row " << t << " top_p " << d.top_p[i] << " top_k " << d.top_k[i];
    }
  }
  EXPECT_LT(undecided, rows / 10);
}

// One row of given values, the rest of the vocabulary far below.
LogitsData row_of(const std::vector<float>& values, float top_p, int32_t top_k) {
  LogitsData d({1, 1024, static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) d.x[i] = to_bf16(values[i]);
  std::fill(d.x.begin() + d.c.vocab, d.x.end(), bf16{0x7fc0});
  d.inv_temp = {1.f}, d.top_p = {top_p}, d.top_k = {top_k}, d.target = {0};
  return d;
}

TEST_P(Logits, SupportKeepsTiesAndCountsMinusZeroAsZero) {
  RLK_NEEDS(logits_support);
  const auto threshold = [&](const std::vector<float>& values, float top_p, int32_t top_k) {
    return run_support(ops(), row_of(values, top_p, top_k)).threshold[0];
  };
  const auto key = [](float x) { return bf16_key(to_bf16(x)); };
  EXPECT_EQ(threshold({3, 2, 2, 2, 1}, 1.f, 2), key(2));  // three values tie at the second place
  EXPECT_EQ(threshold({3, 2, 2, 2, 1}, 1.f, 4), key(2));
  EXPECT_EQ(threshold({3, 2, 2, 2, 1}, 1.f, 5), 0u);  // k = vocabulary: off
  EXPECT_EQ(threshold({3, 2, 2, 2, 1}, 1.f, 1000), 0u);
  EXPECT_EQ(threshold({1, -0.f, 0.f, -1}, 1.f, 2), key(0));  // both zeros stay
  EXPECT_EQ(threshold({1, -0.f, 0.f, -1}, 1.f, 3), key(-0.f));
  EXPECT_EQ(threshold({5, 5, 5, 5}, 0.1f, -1), key(5));  // one value, all of the mass
  EXPECT_EQ(threshold({5, 1, 0}, 1e-6f, -1), key(5));    // never empty
  EXPECT_EQ(threshold({2, 2, 1, -INFINITY}, 0.999f, -1), key(1));
  EXPECT_EQ(threshold({4, 3, 3, 1}, 0.1f, 2), key(4));  // top-k to {4,3,3}, top-p to {4}
  EXPECT_EQ(threshold({7}, 0.5f, 1), key(7));
}

TEST_P(Logits, SupportDependsOnTheValuesAlone) {
  RLK_NEEDS(logits_support);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    const LogitsData d(c);
    const Support whole = run_support(ops(), d);
    LogitsData shuffled = d;
    for (int64_t t = 0; t < c.T; ++t)
      std::reverse(shuffled.x.begin() + t * c.padded, shuffled.x.begin() + t * c.padded + c.vocab);
    EXPECT_TRUE(
        same_bits(c.text() + " reversed", run_support(ops(), shuffled).threshold, whole.threshold));
    for (int64_t t = 0; t < c.T; ++t)
      EXPECT_EQ(run_support(ops(), d.one_row(t)).threshold[0],
                whole.threshold[static_cast<size_t>(t)])
          << c.text() << " row " << t;
  }
}

TEST_P(Logits, ANanIsAnErrorAndPaddingIsNotSeen) {
  RLK_NEEDS(logits_support);
  for (const float top_p : {1.f, 0.9f}) {
    LogitsData d = row_of({1, 2, 3, 4, 5}, top_p, -1);
    EXPECT_EQ(run_support(ops(), d).error, 0);
    d.x[4] = {0xffc1};
    EXPECT_EQ(run_support(ops(), d).error & 1, 1);
  }
}

// ---- Log-probs

std::vector<SliceStats> run_stats(const Ops& ops, const LogitsData& d,
                                  const std::vector<uint32_t>* threshold, int first, int slices,
                                  int32_t* error = nullptr) {
  const DeviceArray<bf16> x(ops, d.shard(first, slices));
  const DeviceArray<float> inv_temp(ops, d.inv_temp);
  const DeviceArray<uint32_t> limits(
      ops, threshold ? *threshold : std::vector<uint32_t>(static_cast<size_t>(d.c.T)));
  const DeviceArray<int32_t> target(ops, d.target);
  DeviceArray<SliceStats> stats(ops, static_cast<size_t>(d.c.T * slices));
  DeviceArray<int32_t> flag(ops, std::vector<int32_t>{0});
  ops.logprob_stats(
      nullptr, {d.view(x.data(), first, slices), inv_temp.data(),
                threshold ? limits.data() : nullptr, target.data(), stats.data(), flag.data()});
  if (error) *error = flag.host()[0];
  return stats.host();
}

struct LogProbs {
  std::vector<float> logp, lse;
};

// As `ranks` ranks of a group: each its slices, then the merge of what an all-gather leaves.
LogProbs run_logprob(const Ops& ops, const LogitsData& d, const std::vector<uint32_t>* threshold,
                     int ranks) {
  std::vector<SliceStats> all;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<SliceStats> part = run_stats(ops, d, threshold, r * 8 / ranks, 8 / ranks);
    all.insert(all.end(), part.begin(), part.end());
  }
  const DeviceArray<SliceStats> stats(ops, all);
  DeviceArray<float> logp(ops, static_cast<size_t>(d.c.T)), lse(ops, static_cast<size_t>(d.c.T));
  ops.logprob_merge(nullptr, {stats.data(), ranks, d.c.T, logp.data(), lse.data()});
  return {logp.host(), lse.host()};
}

double floor_of(uint32_t threshold) {
  if (threshold == 0) return -INFINITY;
  return value(
      bf16{static_cast<uint16_t>(threshold >= 0x8000 ? threshold - 0x8000 : 0xffff - threshold)});
}

TEST_P(Logits, LogProbsAreCloseToFp64) {
  RLK_NEEDS(logits_support);
  RLK_NEEDS(logprob_stats);
  RLK_NEEDS(logprob_merge);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    LogitsData d(c);
    const std::vector<uint32_t> threshold = run_support(ops(), d).threshold;
    for (int64_t t = 0; t < c.T;
         t += 2) {  // half of the targets: the row's best token, in every support
      const std::vector<double> row = d.row(t);
      d.target[static_cast<size_t>(t)] =
          static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    }
    for (const bool full : {true, false}) {
      const LogProbs got = run_logprob(ops(), d, full ? nullptr : &threshold, 1);
      std::vector<double> logp, lse;
      for (int64_t t = 0; t < c.T; ++t) {
        const auto i = static_cast<size_t>(t);
        lse.push_back(0);
        logp.push_back(ref::log_prob(d.row(t), static_cast<double>(d.inv_temp[i]),
                                     full ? -INFINITY : floor_of(threshold[i]),
                                     static_cast<size_t>(d.target[i]), &lse.back()));
      }
      // x/T, the maximum and the logarithm are each rounded at a magnitude of some tens: a few
      // 2^-24 of that.
      EXPECT_TRUE(close_to(std::string("logp ") + (full ? "full " : "support ") + c.text(),
                           got.logp, logp, {5e-7, 10.0}));
      EXPECT_TRUE(close_to(std::string("lse ") + (full ? "full " : "support ") + c.text(), got.lse,
                           lse, {5e-7, 10.0}));
    }
  }
}

TEST_P(Logits, LogProbsOfAnyGroupSizeAndRowAloneAreTheSameBits) {
  RLK_NEEDS(logits_support);
  RLK_NEEDS(logprob_stats);
  RLK_NEEDS(logprob_merge);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    const LogitsData d(c);
    const std::vector<uint32_t> threshold = run_support(ops(), d).threshold;
    const LogProbs whole = run_logprob(ops(), d, &threshold, 1);
    for (const int ranks : {2, 4, 8}) {
      const LogProbs got = run_logprob(ops(), d, &threshold, ranks);
      EXPECT_TRUE(
          same_bits(c.text() + " logp, ranks " + std::to_string(ranks), got.logp, whole.logp));
      EXPECT_TRUE(same_bits(c.text() + " lse, ranks " + std::to_string(ranks), got.lse, whole.lse));
    }
    for (int64_t t = 0; t < c.T; ++t) {
      const std::vector<uint32_t> one{threshold[static_cast<size_t>(t)]};
      EXPECT_EQ(hex_bytes(run_logprob(ops(), d.one_row(t), &one, 1).logp.data(), 4),
                hex_bytes(&whole.logp[static_cast<size_t>(t)], 4))
          << c.text() << " row " << t;
    }
  }
}

TEST_P(Logits, ATargetOutsideTheSupportHasLogProbMinusInfinity) {
  RLK_NEEDS(logprob_stats);
  RLK_NEEDS(logprob_merge);
  LogitsData d = row_of({3, 2, 1}, 1.f, -1);
  const std::vector<uint32_t> threshold{bf16_key(to_bf16(2.f))};
  d.target = {2};
  EXPECT_EQ(run_logprob(ops(), d, &threshold, 1).logp[0], -INFINITY);
  d.target = {1};
  EXPECT_NEAR(static_cast<double>(run_logprob(ops(), d, &threshold, 1).logp[0]),
              -1 - std::log(1 + std::exp(-1.0)), 1e-6);
  int32_t error = 0;
  d.x[1] = {0x7fc0};
  run_stats(ops(), d, nullptr, 0, 8, &error);
  EXPECT_EQ(error & 1, 1);
}

// A log-prob whose slices were merged in another order, or from one maximum, is caught by the
// comparisons above (CPU).
TEST_P(Logits, ADifferentMergeIsCaught) {
  if (is_cuda()) GTEST_SKIP() << "the CPU's formula";
  const LogitsData d(logits_cases(false)[0]);
  const std::vector<float> logp = run_logprob(ops(), d, nullptr, 1).lse;
  const std::vector<SliceStats> s = run_stats(ops(), d, nullptr, 0, 8);
  const auto merged = [&](bool descending) {
    std::vector<float> out;
    for (int64_t t = 0; t < d.c.T; ++t) {
      const SliceStats* row = &s[static_cast<size_t>(t * 8)];
      float top = -INFINITY, sum = 0;
      for (int v = 0; v < 8; ++v) top = std::max(top, row[v].max);
      for (int i = 0; i < 8; ++i) {
        const SliceStats& one = row[descending ? 7 - i : i];
        sum = std::fma(one.sum, static_cast<float>(std::exp(static_cast<double>(one.max - top))),
                       sum);
      }
      out.push_back(top + static_cast<float>(std::log(static_cast<double>(sum))));
    }
    return out;
  };
  EXPECT_FALSE(same_bits("descending", merged(true), merged(false)));
  EXPECT_TRUE(close_to("the formula with libm", merged(false), values(logp), {2e-7}));
}

std::vector<bf16> run_bwd(const Ops& ops, const LogitsData& d,
                          const std::vector<uint32_t>& threshold, const std::vector<float>& lse,
                          const std::vector<float>& g, int first, int slices, bool in_place) {
  DeviceArray<bf16> x(ops, d.shard(first, slices)), out(ops, d.shard(first, slices).size());
  const DeviceArray<float> inv_temp(ops, d.inv_temp), lse_d(ops, lse), g_d(ops, g);
  const DeviceArray<uint32_t> limits(ops, threshold);
  const DeviceArray<int32_t> target(ops, d.target);
  ops.logprob_bwd(nullptr,
                  {d.view(x.data(), first, slices), inv_temp.data(), limits.data(), target.data(),
                   lse_d.data(), g_d.data(), in_place ? x.data() : out.data()});
  return in_place ? x.host() : out.host();
}

TEST_P(Logits, LogProbBwdIsCloseToFp64OnAnyGroupSize) {
  RLK_NEEDS(logits_support);
  RLK_NEEDS(logprob_stats);
  RLK_NEEDS(logprob_bwd);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    const LogitsData d(c);
    const std::vector<uint32_t> threshold = run_support(ops(), d).threshold;
    const LogProbs p = run_logprob(ops(), d, &threshold, 1);
    Random random(43);
    const std::vector<float> g = random.floats(static_cast<size_t>(c.T));
    std::vector<double> want(static_cast<size_t>(c.T * c.padded));
    for (int64_t t = 0; t < c.T; ++t) {
      const auto i = static_cast<size_t>(t);
      const std::vector<double> row = d.row(t);
      double lse;
      const double inv = static_cast<double>(d.inv_temp[i]), floor = floor_of(threshold[i]);
      ref::log_prob(row, inv, floor, 0, &lse);
      for (int64_t j = 0; j < c.vocab; ++j)
        if (const double x = row[static_cast<size_t>(j)]; x >= floor)
          want[static_cast<size_t>(t * c.padded + j)] =
              static_cast<double>(g[i]) * inv *
              (std::exp(x * inv - lse) - (j == d.target[i] ? 1 : 0));
    }
    const std::vector<bf16> whole = run_bwd(ops(), d, threshold, p.lse, g, 0, 8, false);
    // exp of a difference of tens that is 2^-20 off, and one rounding; p - 1 cancels where p is
    // near 1.
    EXPECT_TRUE(close_to("logprob_bwd " + c.text(), whole, want, {kBf16Half * 1.01, 1e-4}));
    EXPECT_TRUE(same_bits("in place " + c.text(),
                          run_bwd(ops(), d, threshold, p.lse, g, 0, 8, true), whole));
    for (const int ranks : {2, 8})
      for (int r = 0; r < ranks; ++r) {
        LogitsData as_data = d;
        as_data.x = whole;
        EXPECT_TRUE(
            same_bits(c.text() + " rank " + std::to_string(r) + " of " + std::to_string(ranks),
                      run_bwd(ops(), d, threshold, p.lse, g, r * 8 / ranks, 8 / ranks, false),
                      as_data.shard(r * 8 / ranks, 8 / ranks)));
      }
  }
}

// ---- Sampling

std::vector<Candidate> run_candidates(const Ops& ops, const LogitsData& d,
                                      const std::vector<uint32_t>& threshold, int first,
                                      int slices) {
  const DeviceArray<bf16> x(ops, d.shard(first, slices));
  const DeviceArray<float> inv_temp(ops, d.inv_temp);
  const DeviceArray<uint32_t> limits(ops, threshold);
  const DeviceArray<SampleKey> keys(ops, d.keys);
  DeviceArray<Candidate> best(ops, static_cast<size_t>(d.c.T));
  SampleArgs args{d.view(x.data(), first, slices),
                  inv_temp.data(),
                  limits.data(),
                  keys.data(),
                  best.data(),
                  nullptr};
  const DeviceBytes workspace(ops, ops.sample_workspace(args));
  args.workspace = workspace.data();
  ops.sample(nullptr, args);
  return best.host();
}

std::vector<int32_t> run_sample(const Ops& ops, const LogitsData& d,
                                const std::vector<uint32_t>& threshold, int ranks) {
  std::vector<Candidate> all;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<Candidate> part = run_candidates(ops, d, threshold, r * 8 / ranks, 8 / ranks);
    all.insert(all.end(), part.begin(), part.end());
  }
  const DeviceArray<Candidate> best(ops, all);
  DeviceArray<int32_t> token(ops, static_cast<size_t>(d.c.T));
  ops.sample_merge(nullptr, {best.data(), ranks, d.c.T, token.data()});
  return token.host();
}

TEST_P(Logits, SampledTokenHasTheLargestNoisyScore) {
  RLK_NEEDS(logits_support);
  RLK_NEEDS(sample);
  RLK_NEEDS(sample_merge);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    LogitsData d(c);
    for (size_t t = 0; t < static_cast<size_t>(c.T); t += 4) d.inv_temp[t] = 0.f;  // greedy
    const std::vector<uint32_t> threshold = run_support(ops(), d).threshold;
    const std::vector<int32_t> token = run_sample(ops(), d, threshold, 1);
    for (int64_t t = 0; t < c.T; ++t) {
      const auto i = static_cast<size_t>(t);
      const std::vector<double> row = d.row(t);
      const double inv = static_cast<double>(d.inv_temp[i]);
      std::vector<double> score;
      for (size_t j = 0; j < row.size(); ++j)
        score.push_back(row[j] < floor_of(threshold[i]) ? -INFINITY
                        : inv == 0
                            ? row[j]
                            : row[j] * inv + ref::gumbel(d.keys[i], static_cast<uint32_t>(j)));
      const auto best =
          std::max_element(score.begin(), score.end());  // the first, as ties go to the lower id
      if (inv == 0) {
        EXPECT_EQ(token[i], best - score.begin()) << c.text() << " row " << t;
      } else {
        EXPECT_GE(score[static_cast<size_t>(token[i])], *best - 1e-5) << c.text() << " row " << t;
      }
    }
  }
}

TEST_P(Logits, SamplesOfAnyGroupSizeAndRowAloneAreTheSame) {
  RLK_NEEDS(logits_support);
  RLK_NEEDS(sample);
  RLK_NEEDS(sample_merge);
  for (const LogitsCase& c : logits_cases(is_cuda())) {
    const LogitsData d(c);
    const std::vector<uint32_t> threshold = run_support(ops(), d).threshold;
    const std::vector<int32_t> token = run_sample(ops(), d, threshold, 1);
    for (const int ranks : {2, 4, 8})
      EXPECT_TRUE(same_bits(c.text() + " ranks " + std::to_string(ranks),
                            run_sample(ops(), d, threshold, ranks), token));
    for (int64_t t = 0; t < c.T; ++t)
      EXPECT_EQ(run_sample(ops(), d.one_row(t), {threshold[static_cast<size_t>(t)]}, 1)[0],
                token[static_cast<size_t>(t)]);
  }
}

TEST_P(Logits, EqualMaximaGoToTheLowerId) {
  RLK_NEEDS(sample);
  RLK_NEEDS(sample_merge);
  std::vector<float> flat(1000, 1.f);
  flat[3] = 0.f;
  LogitsData d = row_of(flat, 1.f, -1);
  d.inv_temp = {0.f};
  for (const int ranks : {1, 2, 8}) EXPECT_EQ(run_sample(ops(), d, {0}, ranks)[0], 0);
  d.x[0] = to_bf16(0.f), d.x[1] = to_bf16(0.5f);
  for (const int ranks : {1, 2, 8}) EXPECT_EQ(run_sample(ops(), d, {0}, ranks)[0], 2);
  d.x[0] = to_bf16(-0.f), d.x[1] = to_bf16(0.f);
  std::fill(d.x.begin() + 2, d.x.begin() + 1000, to_bf16(-1.f));
  for (const int ranks : {1, 2, 8})
    EXPECT_EQ(run_sample(ops(), d, {0}, ranks)[0], 0);  // -0 ties with +0
}

TEST_P(Logits, FrequenciesFollowTheSoftmax) {
  RLK_NEEDS(sample);
  RLK_NEEDS(sample_merge);
  const std::vector<float> logits = {0.f, 1.f, -1.f, 2.f, 0.5f, -2.f};
  const int64_t draws = 20000;
  LogitsData d({draws, 1024, 6});
  std::fill(d.x.begin(), d.x.end(), bf16{0x7fc0});
  for (int64_t t = 0; t < draws; ++t) {
    for (size_t i = 0; i < logits.size(); ++i)
      d.x[static_cast<size_t>(t * 1024) + i] = to_bf16(logits[i]);
    d.inv_temp[static_cast<size_t>(t)] = 1.f;
  }
  std::array<double, 6> count{};
  for (const int32_t token :
       run_sample(ops(), d, std::vector<uint32_t>(static_cast<size_t>(draws)), 1))
    count[static_cast<size_t>(token)] += 1;
  double total = 0, chi2 = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected =
        static_cast<double>(draws) * std::exp(static_cast<double>(logits[i])) / total;
    chi2 += (count[i] - expected) * (count[i] - expected) / expected;
  }
  EXPECT_LT(chi2, 25.0);  // 5 degrees of freedom: exceeded once in 7000 seeds
}

TEST_P(Logits, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  const LogitsData d({64, 1024, 1000});
  const std::vector<uint32_t> threshold = run_support(cpu_ops(1), d).threshold;
  const LogProbs p = run_logprob(cpu_ops(1), d, &threshold, 1);
  const std::vector<int32_t> token = run_sample(cpu_ops(1), d, threshold, 1);
  for (const int threads : {2, 5}) {
    EXPECT_TRUE(same_bits("threshold", run_support(cpu_ops(threads), d).threshold, threshold));
    EXPECT_TRUE(same_bits("logp", run_logprob(cpu_ops(threads), d, &threshold, 2).logp, p.logp));
    EXPECT_TRUE(same_bits("token", run_sample(cpu_ops(threads), d, threshold, 4), token));
  }
  cpu_ops(1);
}

TEST_P(Logits, RefusesAPartOfARowForTheSupport) {
  RLK_NEEDS(logits_support);
  const LogitsData d(logits_cases(false)[0]);
  const DeviceArray<bf16> x(ops(), d.x);
  DeviceArray<uint32_t> threshold(ops(), static_cast<size_t>(d.c.T));
  SupportArgs args{d.view(x.data(), 0, 4), nullptr, nullptr, nullptr,
                   threshold.data(),       nullptr, nullptr};
  EXPECT_THROW(ops().logits_support(nullptr, args), Error);
}

RLK_FOR_EACH_BACKEND(Logits);

}  // namespace
}  // namespace rlk::test
