// logits_support, logprob_stats, logprob_merge, logprob_bwd, sample, sample_merge.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "entries.h"
#include "parallel.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kLogitGrain = 1 << 13;  // logits that repay waking a thread

// Real columns of virtual slice j of the view: ids [first_id, first_id + width), at x +
// j*slice_rows of a row.
int64_t real_width(const LogitsView& v, int j) {
  const int64_t first_id = (v.first_slice + j) * v.slice_rows;
  return std::clamp<int64_t>(v.vocab - first_id, 0, v.slice_rows);
}

void require_view(const LogitsView& v, const char* op) {
  require_multiple(v.slice_rows, 8, op, "slice_rows");
  require(v.slices >= 1 && v.first_slice >= 0 && v.first_slice + v.slices <= kSlices, op, "slices",
          v.slices, "slices of the 8");
  require(v.vocab >= 1 && v.vocab <= kSlices * v.slice_rows, op, "vocab", v.vocab,
          "at most 8*slice_rows");
}

int64_t row_grain(const LogitsView& v) {
  return kLogitGrain / (v.slices * v.slice_rows + 1) + 1;
}

void flag(int32_t* error) {
  std::atomic_ref<int32_t>(*error).fetch_or(1, std::memory_order_relaxed);
}

bool is_nan(bf16 x) {
  return (x.bits & 0x7fff) > 0x7f80;
}

// Eight logits from column c of a slice of `width` real columns, and the mask of those that are in
// the support: key >= threshold, real columns alone. A NaN counts as outside.
inline F8 support_mask(F8 x, int64_t c, int64_t width, F8 floor) {
  const F8 kept = _mm256_cmp_ps(x, floor, _CMP_GE_OQ);
  if (c + 8 <= width) return kept;
  return _mm256_and_ps(kept, _mm256_castsi256_ps(first_lanes(static_cast<int>(width - c))));
}

// The smallest value of the support: bf16_key's inverse, so that key(x) >= threshold is x >= floor.
float support_floor(const uint32_t* threshold, int64_t t) {
  const uint32_t key = threshold ? threshold[t] : 0;
  if (key <= 0x7f) return -kInf;  // at or below the key of -inf: everything
  return to_float({static_cast<uint16_t>(key >= 0x8000 ? key - 0x8000 : 0xffff - key)});
}

// ---- Support

// Counts of a row's bf16 values by key, with a bitmap of the keys present. Kept clear between rows.
class Histogram {
 public:
  uint32_t count[65536] = {};
  uint64_t present[1024] = {};
  uint32_t keys[65536];  // room for top_p_key: the distinct values, largest first, and their masses
  float mass[65536];

  void add(uint32_t key) {
    ++count[key];
    present[key / 64] |= uint64_t{1} << (key % 64);
  }

  // visit(key, count) from the largest key down until it returns false.
  template <class Visit>
  void descend(const Visit& visit) const {
    for (int w = 1023; w >= 0; --w)
      for (uint64_t bits = present[w]; bits != 0;) {
        const int bit = 63 - __builtin_clzll(bits);
        const uint32_t key = static_cast<uint32_t>(w * 64 + bit);
        if (!visit(key, count[key])) return;
        bits &= ~(uint64_t{1} << bit);
      }
  }

  void clear() {
    for (int w = 0; w < 1024; ++w)
      for (; present[w] != 0; present[w] &= present[w] - 1)
        count[w * 64 + __builtin_ctzll(present[w])] = 0;
  }
};

float value_of_key(uint32_t key) {
  return to_float({static_cast<uint16_t>(key >= 0x8000 ? key - 0x8000 : 0xffff - key)});
}

// Key of the smallest value kept by top-k: the k-th largest logit's.
uint32_t top_k_key(const Histogram& h, int64_t k) {
  uint32_t last = 0;
  int64_t seen = 0;
  h.descend([&](uint32_t key, uint32_t n) {
    last = key;
    seen += n;
    return seen < k;
  });
  return last;
}

// Key of the smallest value kept by top-p among keys >= lowest: masses are fp32 exp times the count
// in fp64, added in fp64 from the largest value down.
uint32_t top_p_key(Histogram& h, uint32_t lowest, float top_p, float inv_temp) {
  uint32_t* keys = h.keys;
  float* mass = h.mass;
  int n = 0;
  h.descend([&](uint32_t key, uint32_t) {
    if (key < lowest) return false;
    keys[n++] = key;
    return true;
  });
  const float max = value_of_key(keys[0]);
  for (int i = 0; i < n; i += 8) {
    alignas(32) float x[8] = {};
    for (int j = 0; j < std::min(8, n - i); ++j) x[j] = value_of_key(keys[i + j]);
    store8(mass + i, exp8(mul8(sub8(_mm256_load_ps(x), all8(max)), all8(inv_temp))));
  }
  double total = 0;
  for (int i = 0; i < n; ++i) total += double{mass[i]} * h.count[keys[i]];
  const double wanted = double{top_p} * total;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += double{mass[i]} * h.count[keys[i]];
    if (sum >= wanted) return keys[i];
  }
  return keys[n - 1];
}

// Fills the histogram; false (and clear) when the row holds a NaN.
bool fill(Histogram& h, const bf16* x, int64_t n) {
  bool nan = false;
  for (int64_t i = 0; i < n; ++i) {
    nan |= is_nan(x[i]);
    h.add(bf16_key(x[i]));
  }
  if (nan) h.clear();
  return !nan;
}

}  // namespace

void logits_support(Stream, const SupportArgs& g) {
  const LogitsView& v = g.logits;
  require_view(v, "logits_support");
  require(v.slices == kSlices, "logits_support", "slices", v.slices, "8");
  for_each_part(v.T, row_grain(v), [&](int64_t from, int64_t to) {
    static thread_local const auto histogram = std::make_unique<Histogram>();
    Histogram& h = *histogram;
    for (int64_t t = from; t < to; ++t) {
      g.threshold[t] = 0;
      const bool by_k = g.top_k[t] > 0 && g.top_k[t] < v.vocab;
      const bool by_p = g.top_p[t] < 1.f;
      const bf16* row = v.x + t * v.ld;
      if (!by_k && !by_p) {  // everything is kept; a NaN is an error all the same
        for (int64_t i = 0; i < v.vocab; ++i)
          if (is_nan(row[i])) flag(g.error);
        continue;
      }
      if (!fill(h, row, v.vocab)) {
        flag(g.error);
        continue;
      }
      uint32_t key = by_k ? top_k_key(h, g.top_k[t]) : 0;
      if (by_p) key = top_p_key(h, key, g.top_p[t], g.inv_temp[t]);
      g.threshold[t] = key;
      h.clear();
    }
  });
}

// ---- Log-probabilities

namespace {

SliceStats slice_stats(const bf16* x, int64_t width, float inv_temp, float floor, int64_t target) {
  const F8 low = all8(floor), scale = all8(inv_temp), none = all8(-kInf);
  F8 top = none;
  for (int64_t c = 0; c < width; c += 8) {
    const F8 v = load8(x + c);
    top = _mm256_max_ps(top, select8(support_mask(v, c, width, low), mul8(v, scale), none));
  }
  SliceStats s{max8(top), 0.f, -kInf, 0.f};
  if (s.max == -kInf) return s;
  // Column c in lane c mod 8, ascending; a column outside the support adds +0.
  F8 sum = zero8();
  for (int64_t c = 0; c < width; c += 8) {
    const F8 v = load8(x + c);
    const F8 e = exp8(sub8(mul8(v, scale), all8(s.max)));
    sum = add8(sum, _mm256_and_ps(support_mask(v, c, width, low), e));
  }
  s.sum = sum8(sum);
  if (target >= 0 && target < width && to_float(x[target]) >= floor)
    s.target = to_float(x[target]) * inv_temp;
  return s;
}

}  // namespace

void logprob_stats(Stream, const LogprobStatsArgs& g) {
  const LogitsView& v = g.logits;
  require_view(v, "logprob_stats");
  for_each_part(v.T, row_grain(v), [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t)
      for (int j = 0; j < v.slices; ++j) {
        const bf16* x = v.x + t * v.ld + j * v.slice_rows;
        const int64_t width = real_width(v, j);
        bool nan = false;
        for (int64_t c = 0; c < width; ++c) nan |= is_nan(x[c]);
        if (nan) flag(g.error);
        g.stats[t * v.slices + j] =
            slice_stats(x, width, g.inv_temp[t], support_floor(g.threshold, t),
                        g.target[t] - (v.first_slice + j) * v.slice_rows);
      }
  });
}

// M = max of the slices' maxima; S = sum over slices ascending of fma(sum_v, exp(max_v - M), S),
// from +0.
void logprob_merge(Stream, const LogprobMergeArgs& g) {
  require(is_tree_size(g.ranks), "logprob_merge", "ranks", g.ranks, "1, 2, 4 or 8");
  const int owned = kSlices / g.ranks;
  for_each_part(g.T, 256, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      alignas(32) float max[kSlices], sum[kSlices], scale[kSlices];
      float target = -kInf, top = -kInf;
      for (int v = 0; v < kSlices; ++v) {
        const SliceStats& s = g.stats[(v / owned * g.T + t) * owned + v % owned];
        max[v] = s.max;
        sum[v] = s.sum;
        top = std::max(top, s.max);
        target = std::max(target, s.target);
      }
      _mm256_store_ps(scale, exp8(sub8(_mm256_load_ps(max), all8(top))));
      float total = 0.f;
      for (int v = 0; v < kSlices; ++v)
        if (max[v] != -kInf) total = std::fma(sum[v], scale[v], total);
      g.lse[t] = top + log1(total);
      g.logp[t] = target - g.lse[t];
    }
  });
}

void logprob_bwd(Stream, const LogprobBwdArgs& g) {
  const LogitsView& v = g.logits;
  require_view(v, "logprob_bwd");
  for_each_part(v.T, row_grain(v), [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      const F8 low = all8(support_floor(g.threshold, t)), scale = all8(g.inv_temp[t]);
      const F8 factor = all8(g.g[t] * g.inv_temp[t]), lse = all8(g.lse[t]);
      for (int j = 0; j < v.slices; ++j) {
        const int64_t at = t * v.ld + j * v.slice_rows, width = real_width(v, j);
        const int64_t target = g.target[t] - (v.first_slice + j) * v.slice_rows;
        for (int64_t c = 0; c < v.slice_rows; c += 8) {
          const F8 x = load8(v.x + at + c);
          F8 p = exp8(sub8(mul8(x, scale), lse));
          if (target >= c && target < c + 8) {
            const I8 hit = _mm256_cmpeq_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                              all8(static_cast<int32_t>(target - c)));
            p = select8(_mm256_castsi256_ps(hit), sub8(p, all8(1.f)), p);
          }
          const F8 inside = c < width ? support_mask(x, c, width, low) : zero8();
          store8(g.dlogits + at + c, _mm256_and_ps(inside, mul8(factor, p)));
        }
      }
    }
  });
}

// ---- Sampling

namespace {

constexpr int32_t kNoToken = std::numeric_limits<int32_t>::max();

inline bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

// Gumbel noise of tokens id..id+7 (id % 8 == 0).
F8 gumbel8(const SampleKey& key, int64_t id) {
  alignas(32) uint32_t word[8];
  for (uint32_t q = 0; q < 2; ++q) {
    const PhiloxBlock block = sample_block(key, static_cast<uint32_t>(id / 4) + q);
    std::memcpy(word + 4 * q, block.word, sizeof block.word);
  }
  return neg8(log8(minus_log_uniform(_mm256_load_si256(reinterpret_cast<const I8*>(word)))));
}

Candidate best_of_row(const LogitsView& v, const bf16* row, float inv_temp, float floor,
                      const SampleKey& key) {
  Candidate best{-kInf, kNoToken};
  for (int j = 0; j < v.slices; ++j) {
    const int64_t width = real_width(v, j), first_id = (v.first_slice + j) * v.slice_rows;
    for (int64_t c = 0; c < width; c += 8) {
      const F8 x = load8(row + j * v.slice_rows + c);
      const F8 mask = support_mask(x, c, width, all8(floor));
      int inside = _mm256_movemask_ps(mask);
      if (inside == 0) continue;
      const F8 score =
          inv_temp == 0.f ? x : add8(mul8(x, all8(inv_temp)), gumbel8(key, first_id + c));
      alignas(32) float lane[8];
      _mm256_store_ps(lane, score);
      for (; inside != 0; inside &= inside - 1) {
        const int i = __builtin_ctz(static_cast<unsigned>(inside));
        const Candidate next{lane[i], static_cast<int32_t>(first_id + c + i)};
        if (better(next, best)) best = next;
      }
    }
  }
  return best;
}

}  // namespace

void sample(Stream, const SampleArgs& g) {
  const LogitsView& v = g.logits;
  require_view(v, "sample");
  for_each_part(v.T, row_grain(v) / 4 + 1, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t)
      g.best[t] =
          best_of_row(v, v.x + t * v.ld, g.inv_temp[t], support_floor(g.threshold, t), g.keys[t]);
  });
}

void sample_merge(Stream, const SampleMergeArgs& g) {
  for (int64_t t = 0; t < g.T; ++t) {
    Candidate best = g.best[t];
    for (int r = 1; r < g.ranks; ++r)
      if (better(g.best[r * g.T + t], best)) best = g.best[r * g.T + t];
    g.token[t] = best.token;
  }
}

}  // namespace rlk::cpu
