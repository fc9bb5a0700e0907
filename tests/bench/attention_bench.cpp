// Attention on one GPU: microseconds, TFLOP/s (causal counted as half; backward as 5 products) or
// GB/s of K/V. Steady state: warmed up for 200 ms, then timed for 250 ms; decode in graphs over
// rotated caches larger than the L2. attention_bench [prefill] [backward] [decode];
// tests/bench/attention_yard.py prints cuDNN's figures for the same work.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/check.h"
#include "rlk/device/ops.h"

namespace rlk {
namespace {

using cuda::check;

constexpr int kH = 32, kKH = 8, kDh = 128;
const float kScale = 0.08838834764f;

const Ops* ops;
Stream stream;

struct Memory {
  std::vector<void*> all;
  ~Memory() {
    for (void* p : all) ops->free(p);
  }
  template <class T>
  T* take(size_t n) {
    all.push_back(ops->alloc(n * sizeof(T)));
    return static_cast<T*>(all.back());
  }
  // Normal values; a period of a prime number of elements, so that no two tiles are alike.
  bf16* random(size_t n) {
    constexpr size_t kPeriod = 1048583;
    static const std::vector<bf16> pattern = [] {
      std::vector<bf16> x(kPeriod);
      std::mt19937 engine(1);
      std::normal_distribution<float> normal;
      for (bf16& v : x) v = to_bf16(normal(engine));
      return x;
    }();
    bf16* p = take<bf16>(n);
    for (size_t at = 0; at < n; at += kPeriod)
      ops->copy(stream, p + at, pattern.data(), std::min(kPeriod, n - at) * sizeof(bf16));
    ops->synchronize(stream);
    return p;
  }
  template <class T>
  T* copy_of(const std::vector<T>& host) {
    T* p = take<T>(host.size());
    ops->copy(stream, p, host.data(), host.size() * sizeof(T));
    ops->synchronize(stream);
    return p;
  }
};

double microseconds(const std::function<void()>& f) {
  cudaEvent_t a, b;
  check(cudaEventCreate(&a), "cudaEventCreate");
  check(cudaEventCreate(&b), "cudaEventCreate");
  const auto s = cuda::stream_of(stream);
  const auto run = [&](int n) {
    check(cudaEventRecord(a, s), "cudaEventRecord");
    for (int i = 0; i < n; ++i) f();
    check(cudaEventRecord(b, s), "cudaEventRecord");
    ops->synchronize(stream);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, a, b), "cudaEventElapsedTime");
    return static_cast<double>(ms) / n;
  };
  run(1);
  const double once = run(2);
  run(std::max(1, static_cast<int>(200 / once)));
  const double ms = run(std::max(3, static_cast<int>(250 / once)));
  check(cudaEventDestroy(a), "cudaEventDestroy");
  check(cudaEventDestroy(b), "cudaEventDestroy");
  return ms * 1e3;
}

struct Layout {
  const char* name;
  int page_size;
  bool token_major, plain;
};
const std::vector<Layout> kLayouts = {{"pages of 128", 128, false, false},
                                      {"pages of 128, token-major", 128, true, false},
                                      {"pages of 64", 64, false, false},
                                      {"pages of 16", 16, false, false},
                                      {"plain rows", 128, true, true}};

KvCache make_cache(Memory& memory, const Layout& l, int B, int S, bf16* k, bf16* v) {
  const int per = (S + l.page_size - 1) / l.page_size;
  std::vector<int32_t> table(static_cast<size_t>(B * per));
  std::iota(table.begin(), table.end(), 0);
  if (!l.plain) std::shuffle(table.begin(), table.end(), std::mt19937(7));
  if (l.plain)
    for (int32_t& e : table) e *= l.page_size;
  KvCache c{};
  c.k[0] = k;
  c.v[0] = v;
  c.page_table = memory.copy_of(table);
  c.max_pages = per;
  kv_page_layout(c, kKH, kDh);
  c.page_size = l.page_size;
  c.head_stride = int64_t{l.page_size} * kDh;
  c.page_stride = kKH * c.head_stride;
  if (l.token_major) {
    c.token_stride = kKH * kDh;
    c.head_stride = kDh;
    if (l.plain) c.page_stride = c.token_stride;
  }
  return c;
}

struct Shape {
  int B, S;
};

std::vector<AttentionSegment> whole(const Shape& x) {
  std::vector<AttentionSegment> segments;
  for (int b = 0; b < x.B; ++b) segments.push_back({b, 0, x.S, b * x.S});
  return segments;
}

size_t elements(const Shape& x, int heads) {
  return static_cast<size_t>(x.B) * static_cast<size_t>(x.S) * static_cast<size_t>(heads * kDh);
}

AttentionArgs forward_args(Memory& memory, const Shape& x, const KvCache& cache, bf16* q, bf16* o,
                           float* lse) {
  AttentionArgs a{};
  a.q = q;
  a.cache = cache;
  a.segments = memory.copy_of(whole(x));
  a.n_segments = x.B;
  a.max_len = a.max_context = x.S;
  a.o = o;
  a.lse = lse;
  a.T = int64_t{x.B} * x.S;
  a.H = kH;
  a.KH = kKH;
  a.Dh = kDh;
  a.scale = kScale;
  a.workspace = memory.take<char>(ops->attention_workspace(a));
  return a;
}

void prefill() {
  for (const Layout& l : kLayouts) {
    std::printf("prefill  %-28s", l.name);
    for (const Shape& x : {Shape{8, 512}, Shape{4, 2048}, Shape{2, 8192}, Shape{1, 16384}}) {
      Memory memory;
      bf16 *q = memory.random(elements(x, kH)), *o = memory.take<bf16>(elements(x, kH));
      const KvCache cache = make_cache(memory, l, x.B, x.S, memory.random(elements(x, kKH)),
                                       memory.random(elements(x, kKH)));
      const AttentionArgs a = forward_args(memory, x, cache, q, o, nullptr);
      const double us = microseconds([&] { ops->attention(stream, a); });
      std::printf("  %dx%d %8.1f us %4.0f TFLOP/s", x.B, x.S, us,
                  2.0 * kH * x.B * x.S * static_cast<double>(x.S) * kDh / us / 1e6);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

void backward() {
  for (const Shape& x : {Shape{4, 2048}, Shape{2, 8192}, Shape{1, 16384}}) {
    Memory memory;
    bf16 *q = memory.random(elements(x, kH)), *k = memory.random(elements(x, kKH)),
         *v = memory.random(elements(x, kKH)), *d_o = memory.random(elements(x, kH)),
         *o = memory.take<bf16>(elements(x, kH));
    const size_t stats = static_cast<size_t>(x.B) * static_cast<size_t>(x.S) * kH;
    float *lse = memory.take<float>(stats), *delta = memory.take<float>(stats);
    ops->attention(
        stream,
        forward_args(memory, x, make_cache(memory, kLayouts.back(), x.B, x.S, k, v), q, o, lse));
    std::vector<int32_t> begin;
    for (int b = 0; b <= x.B; ++b) begin.push_back(b * x.S);
    AttentionBwdArgs a{};
    a.q = q;
    a.k = k;
    a.v = v;
    a.d_o = d_o;
    a.lse = lse;
    a.delta = delta;
    a.seq_begin = memory.copy_of(begin);
    a.segments = memory.copy_of(whole(x));
    a.n_segments = x.B;
    a.max_len = a.max_context = x.S;
    a.dq = memory.take<bf16>(elements(x, kH));
    a.dk = memory.take<bf16>(elements(x, kKH));
    a.dv = memory.take<bf16>(elements(x, kKH));
    a.S = int64_t{x.B} * x.S;
    a.H = kH;
    a.KH = kKH;
    a.Dh = kDh;
    a.scale = kScale;
    a.workspace = memory.take<char>(ops->attention_bwd_workspace(a));
    const AttentionDeltaArgs d{o, d_o, delta, a.S, kH, kDh};
    const double flops =
        5.0 * kH * x.B * x.S * static_cast<double>(x.S) * kDh;  // five causal products
    const double t_delta = microseconds([&] { ops->attention_delta(stream, d); });
    const double t_dq = microseconds([&] { ops->attention_bwd_dq(stream, a); });
    const double t_dkv = microseconds([&] { ops->attention_bwd_dkv(stream, a); });
    const double all = microseconds([&] {
      ops->attention_delta(stream, d);
      ops->attention_bwd_dq(stream, a);
      ops->attention_bwd_dkv(stream, a);
    });
    std::printf(
        "backward %dx%-5d delta %6.1f us, dq %8.1f us (%3.0f TFLOP/s of its 3), dkv %8.1f us "
        "(%3.0f of its 4), all %8.1f us %4.0f TFLOP/s\n",
        x.B, x.S, t_delta, t_dq, flops * 3 / 5 / t_dq / 1e6, t_dkv, flops * 4 / 5 / t_dkv / 1e6,
        all, flops / all / 1e6);
    std::fflush(stdout);
  }
}

void decode() {
  for (const Layout& l : {kLayouts[0], kLayouts[1], kLayouts[2], kLayouts[3]})
    for (bool past_ready : {true, false}) {
      if (!past_ready && l.page_size != 128) continue;
      std::printf("decode   %-26s %-10s", l.name, past_ready ? "past ready" : "");
      for (const Shape& x :
           {Shape{8, 1024}, Shape{8, 8192}, Shape{64, 2048}, Shape{1, 8192}, Shape{1, 1024}}) {
        Memory memory;
        const double bytes = static_cast<double>(elements(x, kKH)) * 4;
        const int sets = std::max(2, static_cast<int>(600e6 / bytes));
        bf16* q = memory.random(static_cast<size_t>(x.B * kH * kDh));
        bf16* o = memory.take<bf16>(static_cast<size_t>(x.B * kH * kDh));
        std::vector<AttentionSegment> segments;
        for (int b = 0; b < x.B; ++b) segments.push_back({b, x.S - 1, 1, b});
        std::vector<AttentionArgs> calls;
        for (int i = 0; i < sets; ++i) {
          AttentionArgs a{};
          a.q = q;
          a.cache = make_cache(memory, l, x.B, x.S, memory.random(elements(x, kKH)),
                               memory.random(elements(x, kKH)));
          a.segments = memory.copy_of(segments);
          a.n_segments = x.B;
          a.max_len = 1;
          a.max_context = x.S;
          a.o = o;
          a.T = x.B;
          a.H = kH;
          a.KH = kKH;
          a.Dh = kDh;
          a.scale = kScale;
          a.past_ready = past_ready;
          a.workspace =
              i == 0 ? memory.take<char>(ops->attention_workspace(a)) : calls[0].workspace;
          calls.push_back(a);
        }
        const int reps = std::max(sets, 64) / sets * sets;
        ops->capture_begin(stream);
        for (int i = 0; i < reps; ++i) ops->attention(stream, calls[static_cast<size_t>(i % sets)]);
        const Graph graph = ops->capture_end(stream);
        const double us = microseconds([&] { ops->graph_launch(stream, graph); }) / reps;
        ops->graph_destroy(graph);
        std::printf("  %dx%d %6.2f us %4.0f GB/s", x.B, x.S, us, bytes / us / 1e3);
        std::fflush(stdout);
      }
      std::printf("\n");
    }
}

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  const auto asked = [&](const char* name) {
    for (int i = 1; i < argc; ++i)
      if (std::strcmp(argv[i], name) == 0) return true;
    return argc == 1;
  };
  rlk::ops = &rlk::cuda_ops(0);
  rlk::stream = rlk::ops->stream_create();
  if (asked("prefill")) rlk::prefill();
  if (asked("backward")) rlk::backward();
  if (asked("decode")) rlk::decode();
}
