// Rates of the CPU ops on the tiny model's shapes, one thread. GFLOP/s counts a multiply and an
// add; `peak` is what a loop of independent fma reaches on this core in the same run.

#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <cmath>
#include <vector>

#include "rlk/device/ops.h"

namespace rlk {
namespace {

std::vector<bf16> numbers(int64_t n) {
  std::vector<bf16> x(static_cast<size_t>(n));
  uint64_t state = 1;
  for (bf16& v : x) v = to_bf16(static_cast<float>(mix64(state++) >> 40) * 0x1p-23f - 1.f);
  return x;
}

void report(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void peak(benchmark::State& state) {
  __m256 acc[12], x = _mm256_set1_ps(1.0001f);
  for (__m256& a : acc) a = _mm256_set1_ps(0.5f);
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i)
#pragma GCC unroll 12
      for (__m256& a : acc) a = _mm256_fmadd_ps(a, x, x);
    for (__m256& a : acc) benchmark::DoNotOptimize(a);
  }
  report(state, 1000. * 12 * 16);
}

// Arguments: T, N, K.
void gemm(benchmark::State& state, bool row_parallel) {
  const int64_t T = state.range(0), N = state.range(1), K = state.range(2), ks = K / 8;
  const std::vector<bf16> x = numbers(T * K), w = numbers(N * K);
  std::vector<bf16> y(static_cast<size_t>(T * N));
  const GemmArgs args{x.data(),
                      w.data(),
                      y.data(),
                      T,
                      N,
                      ks,
                      8,
                      K,
                      row_parallel ? N * ks : ks,
                      row_parallel ? ks : K,
                      N,
                      false};
  for (auto _ : state) cpu_ops(1).gemm(nullptr, args);
  report(state, 2. * static_cast<double>(T * N * K));
}

void dgrad(benchmark::State& state, bool row_parallel) {
  const int64_t T = state.range(0), N = state.range(1), K = state.range(2), ns = N / 8, ks = K / 8;
  const std::vector<bf16> dy = numbers(T * N), w = numbers(N * K);
  std::vector<float> dx(static_cast<size_t>(T * K));
  const GemmDgradArgs args =
      row_parallel
          ? GemmDgradArgs{dy.data(), w.data(), dx.data(), T,      ns, ks, 8,
                          8,         N,        ns * ks,   N * ks, ks, K,  true}
          : GemmDgradArgs{dy.data(), w.data(), dx.data(), T, ns, K, 8, 1, N, ns * K, 0, K, K, true};
  for (auto _ : state) cpu_ops(1).gemm_dgrad(nullptr, args);
  report(state, 2. * static_cast<double>(T * N * K));
}

void wgrad(benchmark::State& state, bool row_parallel) {
  const int64_t T = state.range(0), N = state.range(1), K = state.range(2);
  const std::vector<bf16> dy = numbers(T * N), x = numbers(T * K);
  std::vector<float> dw(static_cast<size_t>(N * K));
  GemmWgradArgs args{dy.data(),
                     x.data(),
                     dw.data(),
                     N,
                     row_parallel ? K / 8 : K,
                     row_parallel ? 8 : 1,
                     {8, {}},
                     N,
                     K,
                     row_parallel ? N * K / 8 : 0,
                     row_parallel ? K / 8 : K};
  for (int l = 0; l <= 8; ++l) args.leaves.begin[l] = T / 8 * l;
  for (auto _ : state) cpu_ops(1).gemm_wgrad(nullptr, args);
  report(state, 2. * static_cast<double>(T * N * K));
}

void shapes(benchmark::internal::Benchmark* b, int64_t N, int64_t K, bool training_only) {
  for (const int64_t T : {1, 4, 16, 512, 4096})
    if (!training_only || T >= 512) b->Args({T, N, K});
}

// Arguments: queries, context; 16 heads over 8, Dh 64.
struct Attention {
  static constexpr int kH = 16, kKH = 8, kDh = 64, kPage = 128;
  int queries, context;
  std::vector<bf16> q, k, v, o;
  std::vector<float> lse, delta;
  std::vector<int32_t> table, begin;
  AttentionSegment segment;
  Attention(int n, int c)
      : queries(n),
        context(c),
        q(numbers(int64_t{c} * kH * kDh)),
        k(numbers(int64_t{c + kPage} * kKH * kDh)),
        v(k),
        o(q),
        lse(static_cast<size_t>(c * kH), 5.f),
        delta(lse.size(), 0.1f),
        begin{0, c},
        segment{0, c - n, n, 0} {
    for (int p = 0; p <= c / kPage; ++p) table.push_back(p);
  }
  double flops(int matmuls) const {
    double pairs = 0;
    for (int i = 0; i < queries; ++i) pairs += context - queries + i + 1;
    return 2. * matmuls * pairs * kH * kDh;
  }
};

void attention(benchmark::State& state) {
  Attention a(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  AttentionArgs args{};
  args.q = a.q.data(), args.o = a.o.data(), args.segments = &a.segment, args.n_segments = 1;
  args.cache.k[0] = a.k.data(), args.cache.v[0] = a.v.data(),
  args.cache.page_table = a.table.data();
  args.cache.max_pages = static_cast<int32_t>(a.table.size());
  kv_page_layout(args.cache, a.kKH, a.kDh);
  args.T = a.queries, args.H = a.kH, args.KH = a.kKH, args.Dh = a.kDh, args.scale = 0.125f;
  for (auto _ : state) cpu_ops(1).attention(nullptr, args);
  report(state, a.flops(2));
}

void attention_bwd(benchmark::State& state, bool dkv) {
  Attention a(static_cast<int>(state.range(0)), static_cast<int>(state.range(0)));
  std::vector<bf16> dq(a.q.size()), dk(a.k.size()), dv(a.k.size());
  AttentionBwdArgs args{};
  args.q = a.q.data(), args.k = a.k.data(), args.v = a.v.data(), args.d_o = a.o.data(),
  args.lse = a.lse.data();
  args.delta = a.delta.data(), args.seq_begin = a.begin.data(), args.segments = &a.segment,
  args.n_segments = 1;
  args.dq = dq.data(), args.dk = dk.data(), args.dv = dv.data(), args.S = a.context;
  args.H = a.kH, args.KH = a.kKH, args.Dh = a.kDh, args.scale = 0.125f;
  for (auto _ : state)
    (dkv ? cpu_ops(1).attention_bwd_dkv : cpu_ops(1).attention_bwd_dq)(nullptr, args);
  report(state, a.flops(dkv ? 4 : 3));
}

// Argument: rows of 1024 logits.
struct Logits {
  int64_t T;
  std::vector<bf16> x;
  std::vector<float> inv_temp, top_p, lse, g;
  std::vector<int32_t> top_k, target;
  std::vector<uint32_t> threshold;
  std::vector<SampleKey> keys;
  std::vector<Candidate> best;
  std::vector<SliceStats> stats;
  int32_t error = 0;
  explicit Logits(int64_t n) : T(n), x(numbers(n * 1024)) {
    const auto rows = static_cast<size_t>(n);
    for (bf16& v : x) v = to_bf16(8.f * to_float(v));
    inv_temp.assign(rows, 1.4f), top_p.assign(rows, 0.95f), top_k.assign(rows, -1),
        target.assign(rows, 5);
    lse.assign(rows, 10.f), g.assign(rows, 1.f), threshold.resize(rows), keys.resize(rows),
        best.resize(rows);
    stats.resize(rows * 8);
  }
  LogitsView view() const { return {x.data(), T, 1024, 128, 0, 8, 1000}; }
};

void support(benchmark::State& state) {
  Logits l(state.range(0));
  for (auto _ : state)
    cpu_ops(1).logits_support(nullptr, {l.view(), l.inv_temp.data(), l.top_p.data(), l.top_k.data(),
                                        l.threshold.data(), &l.error, nullptr});
  state.SetItemsProcessed(state.iterations() * l.T);
}

void stats(benchmark::State& state) {
  Logits l(state.range(0));
  for (auto _ : state)
    cpu_ops(1).logprob_stats(nullptr, {l.view(), l.inv_temp.data(), l.threshold.data(),
                                       l.target.data(), l.stats.data(), &l.error});
  state.SetItemsProcessed(state.iterations() * l.T);
}

void sampling(benchmark::State& state) {
  Logits l(state.range(0));
  for (auto _ : state)
    cpu_ops(1).sample(nullptr, {l.view(), l.inv_temp.data(), l.threshold.data(), l.keys.data(),
                                l.best.data(), nullptr});
  state.SetItemsProcessed(state.iterations() * l.T);
}

void logprob_bwd(benchmark::State& state) {
  Logits l(state.range(0));
  std::vector<bf16> out(l.x.size());
  for (auto _ : state)
    cpu_ops(1).logprob_bwd(nullptr, {l.view(), l.inv_temp.data(), l.threshold.data(),
                                     l.target.data(), l.lse.data(), l.g.data(), out.data()});
  state.SetItemsProcessed(state.iterations() * l.T);
}

BENCHMARK(peak);
BENCHMARK_CAPTURE(gemm, qkv, false)->Apply([](auto* b) { shapes(b, 2048, 128, false); });
BENCHMARK_CAPTURE(gemm, o, true)->Apply([](auto* b) { shapes(b, 128, 1024, false); });
BENCHMARK_CAPTURE(gemm, gate_up, false)->Apply([](auto* b) { shapes(b, 768, 128, false); });
BENCHMARK_CAPTURE(gemm, down, true)->Apply([](auto* b) { shapes(b, 128, 384, false); });
BENCHMARK_CAPTURE(gemm, logits, false)->Apply([](auto* b) { shapes(b, 1024, 128, false); });
BENCHMARK_CAPTURE(dgrad, qkv, false)->Apply([](auto* b) { shapes(b, 2048, 128, true); });
BENCHMARK_CAPTURE(dgrad, o, true)->Apply([](auto* b) { shapes(b, 128, 1024, true); });
BENCHMARK_CAPTURE(dgrad, gate_up, false)->Apply([](auto* b) { shapes(b, 768, 128, true); });
BENCHMARK_CAPTURE(dgrad, down, true)->Apply([](auto* b) { shapes(b, 128, 384, true); });
BENCHMARK_CAPTURE(wgrad, qkv, false)->Apply([](auto* b) { shapes(b, 2048, 128, true); });
BENCHMARK_CAPTURE(wgrad, o, true)->Apply([](auto* b) { shapes(b, 128, 1024, true); });
BENCHMARK_CAPTURE(wgrad, gate_up, false)->Apply([](auto* b) { shapes(b, 768, 128, true); });
BENCHMARK_CAPTURE(wgrad, down, true)->Apply([](auto* b) { shapes(b, 128, 384, true); });
BENCHMARK(attention)
    ->Args({1, 100})
    ->Args({1, 1000})
    ->Args({128, 128})
    ->Args({200, 200})
    ->Args({1024, 1024});
BENCHMARK_CAPTURE(attention_bwd, dq, false)->Arg(200)->Arg(1024);
BENCHMARK_CAPTURE(attention_bwd, dkv, true)->Arg(200)->Arg(1024);
BENCHMARK(support)->Arg(64);
BENCHMARK(stats)->Arg(64);
BENCHMARK(sampling)->Arg(64);
BENCHMARK(logprob_bwd)->Arg(64);

}  // namespace
}  // namespace rlk

BENCHMARK_MAIN();
