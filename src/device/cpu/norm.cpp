// rms_norm and its backward; qk_norm_rope and its backward. A row's sum runs in 32 lanes (element i
// in lane i mod 32, ascending), joined ((0+1)+(2+3)) over the four registers, then over the eight
// lanes by the aligned tree.

#include <cmath>
#include <cstring>

#include "entries.h"
#include "parallel.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

// Sum over i of term(i), a vector of elements i..i+7, for i = 0, 8, .. < n.
template <class Accumulate>
float row_sum(int64_t n, const Accumulate& accumulate) {
  F8 lane[4] = {zero8(), zero8(), zero8(), zero8()};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 4; ++j) lane[j] = accumulate(i + 8 * j, lane[j]);
  for (int j = 0; i < n; i += 8, ++j) lane[j] = accumulate(i, lane[j]);
  return sum8(add8(add8(lane[0], lane[1]), add8(lane[2], lane[3])));
}

float sum_of_squares(const bf16* x, int64_t n) {
  return row_sum(n, [x](int64_t i, F8 sum) {
    const F8 v = load8(x + i);
    return fma8(v, v, sum);
  });
}

float reciprocal_rms(const bf16* x, int64_t n, float eps) {
  return 1.f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
}

// x * rstd * w, the value before rounding.
inline F8 normed(const bf16* x, F8 rstd, const bf16* w) {
  return mul8(mul8(load8(x), rstd), load8(w));
}

constexpr int64_t kRowGrain = 1 << 15;  // elements that repay waking a thread

}  // namespace

void rms_norm(Stream, const RmsNormArgs& g) {
  require_multiple(g.D, 8, "rms_norm", "D");
  for_each_part(g.T, kRowGrain / (g.D + 1) + 1, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      const bf16* x = g.x + t * g.D;
      if (g.delta) {
        bf16* sum = g.x_out + t * g.D;
        for (int64_t i = 0; i < g.D; i += 8)
          store8(sum + i, add8(load8(x + i), load8(g.delta + t * g.D + i)));
        x = sum;
      }
      const float rstd = reciprocal_rms(x, g.D, g.eps);
      if (g.rstd) g.rstd[t] = rstd;
      for (int64_t i = 0; i < g.D; i += 8)
        store8(g.y + t * g.D + i, normed(x + i, all8(rstd), g.w + i));
    }
  });
}

void rms_norm_bwd(Stream, const RmsNormBwdArgs& g) {
  require_multiple(g.D, 8, "rms_norm_bwd", "D");
  for_each_part(g.T, kRowGrain / (g.D + 1) + 1, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      const float* dy = g.dy + t * g.D;
      const bf16* x = g.x + t * g.D;
      const F8 rstd = all8(g.rstd[t]);
      const float dot = row_sum(g.D, [&](int64_t i, F8 sum) {
        return fma8(mul8(load8(dy + i), load8(g.w + i)), mul8(load8(x + i), rstd), sum);
      });
      const F8 mean = all8(dot / static_cast<float>(g.D));
      for (int64_t i = 0; i < g.D; i += 8) {
        const F8 xhat = mul8(load8(x + i), rstd);
        const F8 inner = fma8(neg8(xhat), mean, mul8(load8(dy + i), load8(g.w + i)));
        float* out = g.dres + t * g.D + i;
        store8(out, g.accumulate ? fma8(rstd, inner, load8(out)) : mul8(rstd, inner));
      }
    }
  });
}

void rms_norm_wgrad(Stream, const RmsNormWgradArgs& g) {
  require_multiple(g.D, 8, "rms_norm_wgrad", "D");
  require_leaves(g.leaves, "rms_norm_wgrad");
  for_each_part(g.D / 8, 4, [&](int64_t from, int64_t to) {
    for (int64_t d = from * 8; d < to * 8; d += 8) {
      F8 node[kSlices];
      for (int l = 0; l < g.leaves.count; ++l) {
        node[l] = zero8();
        for (int64_t t = g.leaves.begin[l]; t < g.leaves.begin[l + 1]; ++t)
          node[l] = fma8(load8(g.dy + t * g.D + d), mul8(load8(g.x + t * g.D + d), all8(g.rstd[t])),
                         node[l]);
      }
      for (int width = g.leaves.count / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) node[i] = add8(node[2 * i], node[2 * i + 1]);
      store8(g.dw + d, node[0]);
    }
  });
}

// ---- Q/K norm and rotation

namespace {

// Eight (cos, sin) pairs of a table row.
inline void load_rotation(const float* pairs, F8& cos, F8& sin) {
  const F8 a = load8(pairs), b = load8(pairs + 8);
  const F8 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  cos = _mm256_shuffle_ps(low, high, 0x88);
  sin = _mm256_shuffle_ps(low, high, 0xdd);
}

struct Packed {  // one row of the packed projection
  int slices, hq, hkv, Dh;
  int64_t slice_width() const { return int64_t{hq + 2 * hkv} * Dh; }
  int64_t row_width() const { return slices * slice_width(); }
  int64_t q(int h) const { return h / hq * slice_width() + int64_t{h % hq} * Dh; }
  int64_t k(int h) const { return h / hkv * slice_width() + int64_t{hq + h % hkv} * Dh; }
  int64_t v(int h) const { return h / hkv * slice_width() + int64_t{hq + hkv + h % hkv} * Dh; }
};

void norm_rotate(const bf16* x, const bf16* w, const float* rotation, int Dh, float eps, bf16* y) {
  const F8 rstd = all8(reciprocal_rms(x, Dh, eps));
  const int half = Dh / 2;
  for (int i = 0; i < half; i += 8) {
    const F8 a = round_bf16(normed(x + i, rstd, w + i));
    const F8 b = round_bf16(normed(x + half + i, rstd, w + half + i));
    F8 cos, sin;
    load_rotation(rotation + 2 * i, cos, sin);
    store8(y + i, fma8(a, cos, neg8(mul8(b, sin))));
    store8(y + half + i, fma8(b, cos, mul8(a, sin)));
  }
}

struct Page {
  bf16* k;
  bf16* v;
};

Page cache_page(const KvCache& cache, int32_t seq, int32_t position) {
  const int64_t entry =
      cache.page_table[int64_t{seq} * cache.max_pages + position / cache.page_size];
  const int64_t offset =
      (entry & 0xffffff) * cache.page_stride + position % cache.page_size * cache.token_stride;
  const int64_t shard = entry >> 24;
  return {cache.k[shard] + offset, cache.v[shard] + offset};
}

void require_heads(const char* op, int slices, int hq, int hkv, int Dh) {
  require(slices >= 1, op, "slices", slices, "at least 1");
  require(hq >= 1 && hkv >= 1, op, "heads of a slice", std::min(hq, hkv), "at least 1");
  require_multiple(Dh, 16, op, "Dh");
}

}  // namespace

void qk_norm_rope(Stream, const QkNormRopeArgs& g) {
  require_heads("qk_norm_rope", g.slices, g.hq, g.hkv, g.Dh);
  const Packed packed{g.slices, g.hq, g.hkv, g.Dh};
  const int H = g.slices * g.hq, KH = g.slices * g.hkv;
  for_each_part(g.T, kRowGrain / packed.row_width() + 1, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      const bf16* row = g.qkv + t * packed.row_width();
      const float* rotation = g.rope + int64_t{g.position[t]} * g.Dh;
      for (int h = 0; h < H; ++h)
        norm_rotate(row + packed.q(h), g.q_weight, rotation, g.Dh, g.eps, g.q + (t * H + h) * g.Dh);
      bf16* k = g.k ? g.k + t * KH * g.Dh : nullptr;
      bf16* v = g.v ? g.v + t * KH * g.Dh : nullptr;
      int64_t head = g.Dh;
      if (!g.k) {
        if (g.seq[t] < 0) continue;
        const Page page = cache_page(*g.cache, g.seq[t], g.position[t]);
        k = page.k, v = page.v, head = g.cache->head_stride;
      }
      for (int h = 0; h < KH; ++h) {
        norm_rotate(row + packed.k(h), g.k_weight, rotation, g.Dh, g.eps, k + h * head);
        std::memcpy(v + h * head, row + packed.v(h), static_cast<size_t>(g.Dh) * sizeof(bf16));
      }
    }
  });
}

void kv_write(Stream, const KvWriteArgs& g) {
  for (int64_t t = 0; t < g.T; ++t) {
    if (g.seq[t] < 0) continue;
    const Page page = cache_page(*g.cache, g.seq[t], g.position[t]);
    const size_t bytes = static_cast<size_t>(g.Dh) * sizeof(bf16);
    for (int h = 0; h < g.KH; ++h) {
      std::memcpy(page.k + h * g.cache->head_stride, g.k + (t * g.KH + h) * g.Dh, bytes);
      std::memcpy(page.v + h * g.cache->head_stride, g.v + (t * g.KH + h) * g.Dh, bytes);
    }
  }
}

namespace {

// Backward of norm_rotate for one head: dx bf16 from dy bf16, and dw[i] = fma(dn, x*rstd, dw[i]).
void norm_rotate_bwd(const bf16* x, const bf16* w, const float* rotation, const bf16* dy, int Dh,
                     float eps, bf16* dx, float* dw, float* dn) {
  const F8 rstd = all8(reciprocal_rms(x, Dh, eps));
  const int half = Dh / 2;
  for (int i = 0; i < half; i += 8) {
    F8 cos, sin;
    load_rotation(rotation + 2 * i, cos, sin);
    const F8 a = load8(dy + i), b = load8(dy + half + i);
    store8(dn + i, fma8(a, cos, mul8(b, sin)));
    store8(dn + half + i, fma8(b, cos, neg8(mul8(a, sin))));
  }
  const float dot = row_sum(Dh, [&](int64_t i, F8 sum) {
    return fma8(mul8(load8(dn + i), load8(w + i)), mul8(load8(x + i), rstd), sum);
  });
  const F8 mean = all8(dot / static_cast<float>(Dh));
  for (int i = 0; i < Dh; i += 8) {
    const F8 xhat = mul8(load8(x + i), rstd);
    const F8 inner = fma8(neg8(xhat), mean, mul8(load8(dn + i), load8(w + i)));
    store8(dx + i, mul8(rstd, inner));
    store8(dw + i, fma8(load8(dn + i), xhat, load8(dw + i)));
  }
}

// One virtual slice of the tokens of one leaf, tokens and heads ascending.
void qk_slice_bwd(const QkNormRopeBwdArgs& g, const Packed& packed, int64_t leaf, int slice) {
  const int H = g.slices * g.hq, KH = g.slices * g.hkv;
  const int64_t at = (leaf * g.slices + slice) * g.Dh;
  float* dn = scratch(0, static_cast<size_t>(g.Dh));
  std::memset(g.q_dw + at, 0, static_cast<size_t>(g.Dh) * sizeof(float));
  std::memset(g.k_dw + at, 0, static_cast<size_t>(g.Dh) * sizeof(float));
  for (int64_t t = g.leaves.begin[leaf]; t < g.leaves.begin[leaf + 1]; ++t) {
    const bf16* row = g.qkv + t * packed.row_width();
    bf16* out = g.dqkv + t * packed.row_width();
    const float* rotation = g.rope + int64_t{g.position[t]} * g.Dh;
    for (int h = slice * g.hq; h < (slice + 1) * g.hq; ++h)
      norm_rotate_bwd(row + packed.q(h), g.q_weight, rotation, g.dq + (t * H + h) * g.Dh, g.Dh,
                      g.eps, out + packed.q(h), g.q_dw + at, dn);
    for (int h = slice * g.hkv; h < (slice + 1) * g.hkv; ++h) {
      norm_rotate_bwd(row + packed.k(h), g.k_weight, rotation, g.dk + (t * KH + h) * g.Dh, g.Dh,
                      g.eps, out + packed.k(h), g.k_dw + at, dn);
      std::memcpy(out + packed.v(h), g.dv + (t * KH + h) * g.Dh,
                  static_cast<size_t>(g.Dh) * sizeof(bf16));
    }
  }
}

}  // namespace

void qk_norm_rope_bwd(Stream, const QkNormRopeBwdArgs& g) {
  require_heads("qk_norm_rope_bwd", g.slices, g.hq, g.hkv, g.Dh);
  require_leaves(g.leaves, "qk_norm_rope_bwd");
  require(g.leaves.begin[0] == 0 && g.leaves.begin[g.leaves.count] == g.T, "qk_norm_rope_bwd",
          "rows in the leaves", g.leaves.begin[g.leaves.count], "T");
  const Packed packed{g.slices, g.hq, g.hkv, g.Dh};
  for_each_part(int64_t{g.leaves.count} * g.slices, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i)
      qk_slice_bwd(g, packed, i / g.slices, static_cast<int>(i % g.slices));
  });
}

}  // namespace rlk::cpu
