// Attention at Qwen3-8B's heads: causal forward and backward of whole sequences, and decode, from
// paged K/V. Outputs are compared with fp64 at a few rows spread over sequences, positions and
// heads.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "../harness.h"
#include "kernels/common/check.h"

namespace rlk::bench {
namespace {

constexpr int kH = 32, kKH = 8, kDh = 128, kGroup = kH / kKH;
constexpr float kScale = 0.08838834764f;  // 1/sqrt(Dh)
constexpr double kSteadyMs = 200;

struct Shape {
  int B, S;
  int64_t rows() const { return int64_t{B} * S; }
  std::string text() const { return std::to_string(B) + "x" + std::to_string(S); }
};

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Rows [first, first + n) of head `head` of x [rows, heads, Dh].
std::vector<Vector> head_rows(const bf16* x, int heads, int64_t first, int64_t n, int head) {
  constexpr size_t kBytes = kDh * sizeof(bf16);
  std::vector<bf16> host(static_cast<size_t>(n) * kDh);
  cuda::check(cudaMemcpy2D(host.data(), kBytes, x + (first * heads + head) * kDh,
                           static_cast<size_t>(heads) * kBytes, kBytes, static_cast<size_t>(n),
                           cudaMemcpyDeviceToHost),
              "cudaMemcpy2D");
  std::vector<Vector> rows(static_cast<size_t>(n), Vector(kDh));
  for (size_t i = 0; i < host.size(); ++i) rows[i / kDh][i % kDh] = to_float(host[i]);
  return rows;
}

// Softmax weights of a query over the first `count` keys; lse in exp2 units.
Vector weights(const Vector& q, const std::vector<Vector>& k, int64_t count,
               double* lse = nullptr) {
  Vector p(static_cast<size_t>(count));
  double top = -INFINITY, sum = 0;
  for (size_t j = 0; j < p.size(); ++j) top = std::max(top, p[j] = kScale * dot(q, k[j]));
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
  if (lse != nullptr) *lse = (top + std::log(sum)) / std::log(2.0);
  return p;
}

void add(Vector& sum, double factor, const Vector& x) {
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += factor * x[d];
}

Vector weighted(const Vector& p, const std::vector<Vector>& v) {
  Vector o(kDh);
  for (size_t j = 0; j < p.size(); ++j) add(o, p[j], v[j]);
  return o;
}

// "" where ||got - want|| <= tolerance ||want||.
std::string close(const std::string& what, const Vector& got, const Vector& want,
                  double tolerance) {
  double error = 0, size = 0;
  for (size_t d = 0; d < want.size(); ++d) {
    error += (got[d] - want[d]) * (got[d] - want[d]);
    size += want[d] * want[d];
  }
  if (error <= tolerance * tolerance * size) return "";
  return what + " is off by " + std::to_string(std::sqrt(error / size));
}

// Contiguous keys of every sequence, [B*S, KH, Dh], as a cache of shuffled pages: page_table gives
// page i of a sequence a place of its own in k and v.
struct Paged {
  KvCache cache{};
  std::vector<int32_t> table;

  Paged(Buffers& b, const Shape& x, int page_size, const bf16* k, const bf16* v) {
    const int per = x.S / page_size;
    table.resize(static_cast<size_t>(x.B * per));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    cache.k[0] = const_cast<bf16*>(k);
    cache.v[0] = const_cast<bf16*>(v);
    cache.page_table = b.copy_of(table);
    cache.max_pages = per;
    kv_page_layout(cache, kKH, kDh, page_size);
  }
  // The first n keys (or values) of a sequence's head.
  std::vector<Vector> rows(const bf16* from, int seq, int64_t n, int head) const {
    std::vector<Vector> all;
    for (int64_t p = 0; p < n; p += cache.page_size) {
      const int32_t page = table[static_cast<size_t>(seq * cache.max_pages + p / cache.page_size)];
      const bf16* at = from + page * cache.page_stride + head * cache.head_stride;
      const int64_t count = std::min<int64_t>(cache.page_size, n - p);
      for (Vector& row : head_rows(at, 1, 0, count, 0)) all.push_back(std::move(row));
    }
    return all;
  }
};

struct Sample {
  int seq, position, head;
};
std::vector<Sample> samples(const Shape& x, bool last_only) {
  std::vector<Sample> all;
  for (int i = 0; i < 3; ++i)
    all.push_back({i * (x.B - 1) / 2, last_only || i == 2 ? x.S - 1 : (i + 1) * x.S / 3, i * 15});
  return all;
}

AttentionArgs forward_args(Buffers& b, const Shape& x, const KvCache& cache, const bf16* q, bf16* o,
                           int queries) {
  std::vector<AttentionSegment> segments;
  for (int s = 0; s < x.B; ++s) segments.push_back({s, x.S - queries, queries, s * queries});
  AttentionArgs a{};
  a.q = q;
  a.cache = cache;
  a.segments = b.copy_of(segments);
  a.n_segments = x.B;
  a.max_len = queries;
  a.max_context = x.S;
  a.o = o;
  a.T = int64_t{x.B} * queries;
  a.H = kH;
  a.KH = kKH;
  a.Dh = kDh;
  a.scale = kScale;
  a.workspace = b.bytes(b.ops().attention_workspace(a));
  return a;
}

std::string check_forward(const Shape& x, const AttentionArgs& a, const Paged& paged) {
  std::string miss;
  for (const Sample& s : samples(x, a.max_len == 1)) {
    const int64_t row = a.max_len == 1 ? s.seq : int64_t{s.seq} * x.S + s.position;
    const auto k = paged.rows(a.cache.k[0], s.seq, s.position + 1, s.head / kGroup);
    const auto v = paged.rows(a.cache.v[0], s.seq, s.position + 1, s.head / kGroup);
    const Vector q = head_rows(a.q, kH, row, 1, s.head)[0];
    const Vector want = weighted(weights(q, k, s.position + 1), v);
    if (miss.empty())
      miss = close("o of row " + std::to_string(row), head_rows(a.o, kH, row, 1, s.head)[0], want,
                   8e-3);
  }
  return miss;
}

Case prefill(Buffers& b, const Shape& x, int page_size) {
  const int64_t n = x.rows();
  const bf16 *q = b.normal(n * kH * kDh), *k = b.normal(n * kKH * kDh),
             *v = b.normal(n * kKH * kDh);
  const Paged paged(b, x, page_size, k, v);
  const AttentionArgs a = forward_args(b, x, paged.cache, q, b.array<bf16>(n * kH * kDh), x.S);
  Case c;
  c.flops = 2.0 * kH * static_cast<double>(n) * x.S * kDh;  // two products, half of each masked
  c.warm_ms = kSteadyMs;
  c.run = [&b, a](Stream s, int) { b.ops().attention(s, a); };
  c.verify = [=] { return check_forward(x, a, paged); };
  return c;
}

Case decode(Buffers& b, const Shape& x, int page_size, bool past_ready) {
  const int64_t n = x.rows() * kKH * kDh;
  Case c;
  c.bytes = static_cast<double>(n) * 4;
  c.sets = std::max(2, sets_of(c.bytes / 3));
  const bf16* q = b.normal(x.B * kH * kDh);
  bf16* o = b.array<bf16>(x.B * kH * kDh);
  const bf16 *k = b.normal(n * c.sets), *v = b.normal(n * c.sets);
  const Paged paged(b, x, page_size, k, v);
  AttentionArgs base = forward_args(b, x, paged.cache, q, o, 1);
  base.past_ready = past_ready;
  c.run = [=, &b](Stream s, int set) {
    AttentionArgs a = base;
    a.cache.k[0] += set * n;
    a.cache.v[0] += set * n;
    b.ops().attention(s, a);
  };
  c.verify = [=] { return check_forward(x, base, paged); };
  return c;
}

// dQ of a query, and dK, dV of the key at the same position and of the query's KV head.
std::string check_backward(const Buffers& b, const Shape& x, const AttentionBwdArgs& a) {
  std::string miss;
  for (const Sample& s : samples(x, false)) {
    const int64_t first = int64_t{s.seq} * x.S;
    const int kv = s.head / kGroup;
    const auto k = head_rows(a.k, kKH, first, x.S, kv), v = head_rows(a.v, kKH, first, x.S, kv);
    Vector dq(kDh), dk(kDh), dv(kDh);
    for (int head = kv * kGroup; head < (kv + 1) * kGroup; ++head) {
      const auto q = head_rows(a.q, kH, first, x.S, head);
      const auto g = head_rows(a.d_o, kH, first, x.S, head);
      const auto lse = b.host(a.lse + first * kH, x.S * kH),
                 delta = b.host(a.delta + first * kH, x.S * kH);
      // The forward's own row statistics: the first pass has checked them through o.
      const auto p_of = [&](int64_t i, int64_t j) {
        return std::exp2(kScale * std::log2(std::exp(1.0)) *
                             dot(q[static_cast<size_t>(i)], k[static_cast<size_t>(j)]) -
                         lse[static_cast<size_t>(i * kH + head)]);
      };
      const auto ds_of = [&](int64_t i, int64_t j, double p) {
        return p * (dot(g[static_cast<size_t>(i)], v[static_cast<size_t>(j)]) -
                    delta[static_cast<size_t>(i * kH + head)]);
      };
      for (int64_t i = s.position; i < x.S; ++i) {
        const double p = p_of(i, s.position);
        add(dv, p, g[static_cast<size_t>(i)]);
        add(dk, kScale * ds_of(i, s.position, p), q[static_cast<size_t>(i)]);
      }
      for (int64_t j = 0; head == s.head && j <= s.position; ++j)
        add(dq, kScale * ds_of(s.position, j, p_of(s.position, j)), k[static_cast<size_t>(j)]);
    }
    const int64_t row = first + s.position;
    const auto test = [&](const char* what, const bf16* got, int heads, int head,
                          const Vector& want) {
      if (miss.empty())
        miss = close(what + (" of row " + std::to_string(row)),
                     head_rows(got, heads, row, 1, head)[0], want, 2e-2);
    };
    test("dq", a.dq, kH, s.head, dq);
    if (s.position == x.S - 1) continue;  // one query sees the last key: rounding is all of dK
    test("dk", a.dk, kKH, kv, dk);
    test("dv", a.dv, kKH, kv, dv);
  }
  return miss;
}

Case backward(Buffers& b, const Shape& x) {
  const int64_t n = x.rows(), wide = n * kH * kDh, narrow = n * kKH * kDh;
  const bf16 *q = b.normal(wide), *k = b.normal(narrow), *v = b.normal(narrow),
             *d_o = b.normal(wide);
  bf16* o = b.array<bf16>(wide);
  float *lse = b.array<float>(n * kH), *delta = b.array<float>(n * kH);
  std::vector<AttentionSegment> whole;
  std::vector<int32_t> begin, rows;
  for (int s = 0; s < x.B; ++s) whole.push_back({s, 0, x.S, s * x.S});
  for (int s = 0; s <= x.B; ++s) begin.push_back(s * x.S);
  for (int r = 0; r < x.B * x.S; r += kKvPageSize) rows.push_back(r);
  KvCache plain{};  // the rows themselves: an entry is the row of a page's first key
  plain.k[0] = const_cast<bf16*>(k);
  plain.v[0] = const_cast<bf16*>(v);
  plain.page_table = b.copy_of(rows);
  plain.max_pages = x.S / kKvPageSize;
  plain.page_size = kKvPageSize;
  plain.page_stride = plain.token_stride = kKH * kDh;
  plain.head_stride = kDh;
  AttentionArgs f = forward_args(b, x, plain, q, o, x.S);
  f.lse = lse;
  b.ops().attention(nullptr, f);
  b.ops().synchronize(nullptr);
  AttentionBwdArgs a{q, k, v, d_o, lse, delta, b.copy_of(begin), b.copy_of(whole), x.B, x.S, x.S};
  a.dq = b.array<bf16>(wide);
  a.dk = b.array<bf16>(narrow);
  a.dv = b.array<bf16>(narrow);
  a.S = n;
  a.H = kH;
  a.KH = kKH;
  a.Dh = kDh;
  a.scale = kScale;
  a.workspace = b.bytes(b.ops().attention_bwd_workspace(a));
  Case c;
  c.flops = 5.0 * kH * static_cast<double>(n) * x.S * kDh;  // five products, as others count
  c.warm_ms = kSteadyMs;
  c.run = [=, &b](Stream s, int) {
    b.ops().attention_delta(s, {o, d_o, delta, n, kH, kDh});
    b.ops().attention_bwd_dq(s, a);
    b.ops().attention_bwd_dkv(s, a);
  };
  c.verify = [=, &b] { return check_backward(b, x, a); };
  return c;
}

}  // namespace

void add_attention_cases(std::vector<NamedCase>& cases) {
  const auto pages = [](int size) { return " pages of " + std::to_string(size); };
  for (const Shape& x : {Shape{8, 512}, {4, 2048}, {2, 8192}, {1, 16384}})
    cases.push_back({"attention", "prefill " + x.text() + pages(128),
                     [x](Buffers& b) { return prefill(b, x, 128); }});
  cases.push_back({"attention", "prefill 4x2048 pages of 16", [](Buffers& b) {
                     return prefill(b, {4, 2048}, 16);
                   }});
  for (const Shape& x : {Shape{4, 2048}, {2, 8192}, {1, 16384}})
    cases.push_back({"attention_bwd", x.text(), [x](Buffers& b) { return backward(b, x); }});
  for (const Shape& x : {Shape{1, 1024}, {8, 1024}, {64, 1024}, {8, 8192}, {64, 2048}, {1, 8192}})
    for (const int page : {128, 16})
      cases.push_back({"attention", "decode " + x.text() + pages(page),
                       [x, page](Buffers& b) { return decode(b, x, page, true); }});
  for (const Shape& x : {Shape{8, 1024}, {1, 8192}})
    cases.push_back({"attention", "decode " + x.text() + pages(128) + " not past_ready",
                     [x](Buffers& b) { return decode(b, x, 128, false); }});
}

}  // namespace rlk::bench
