// Native mode's ops on CUDA against the strict ones: the same values, by other sums.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/attention_cases.h"
#include "device/gemm_cases.h"
#include "device/harness.h"
#include "rlk/device/matmul.h"

namespace rlk::test {
namespace {

class Native : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    strict_ = backend_ops("cuda", &why);
    if (strict_) {
      native_ = &cuda_native_ops(0);
      return;
    }
    if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
    GTEST_SKIP() << why;
  }

  // What `op` leaves in n elements of T with each table.
  template <class T>
  std::pair<std::vector<T>, std::vector<T>> both(
      size_t n, const std::function<void(const Ops&, T*)>& op) const {
    std::vector<T> results[2];
    for (const Ops* ops : {strict_, native_}) {
      DeviceArray<T> out(*ops, n);
      op(*ops, out.data());
      ops->synchronize(nullptr);
      results[ops == native_] = out.host();
    }
    return {results[0], results[1]};
  }

  // Weights are never freed: the native table keeps copies by address, as those of a model are
  // fixed.
  const bf16* weights(const std::vector<bf16>& host) const {
    static std::vector<DeviceArray<bf16>> all;
    return all.emplace_back(*strict_, host).data();
  }

  const Ops *strict_ = nullptr, *native_ = nullptr;
};

// fp32 sums of `terms` products of unit normals, whose magnitudes add up to 0.64 a term. cuBLASLt's
// chains may be as long as the sum: 1e-5 of its square root (docs/numerics.md), far inside.
::testing::AssertionResult close_sums(const std::string& what, const std::vector<float>& native,
                                      const std::vector<float>& strict, int64_t terms) {
  return close_to(what, native, values(strict), {2e-6},
                  std::vector<double>(native.size(), 0.64 * static_cast<double>(terms)));
}

struct Operands {
  std::vector<bf16> x, w;
  Operands(int64_t rows, int64_t columns, int64_t K) {
    Random random(static_cast<uint64_t>(rows + columns + K));
    x = random.bf16s(static_cast<size_t>(rows * K));
    w = random.bf16s(static_cast<size_t>(columns * K));
  }
};

TEST_F(Native, GemmIsCloseInEveryLayoutOfItsWeights) {
  for (const GemmCase& c : gemm_cases(true)) {
    for (int tp : {1, 2, 8}) {
      const int64_t N = c.row_parallel ? c.N : c.N / tp, ks = c.K / kSlices;
      const int slices = c.row_parallel ? kSlices / tp : kSlices;
      const int64_t K = slices * ks;
      if (N % 8 != 0) continue;
      const Operands in(c.T, N, K);
      const DeviceArray<bf16> x(*strict_, in.x);
      const bf16* w = weights(in.w);
      const auto [strict, native] =
          both<float>(static_cast<size_t>(c.T * N), [&](const Ops& ops, float* y) {
            ops.gemm(nullptr, {.x = x.data(),
                               .w = w,
                               .y = y,
                               .T = c.T,
                               .N = N,
                               .ks = ks,
                               .slices = slices,
                               .ldx = K,
                               .w_slice = c.row_parallel ? N * ks : ks,
                               .ldw = c.row_parallel ? ks : K,
                               .ldy = N,
                               .out_f32 = true});
          });
      EXPECT_TRUE(close_sums(c.text() + " tp=" + std::to_string(tp), native, strict, K));
    }
  }
}

TEST_F(Native, DgradIsCloseInEveryLayoutOfItsWeights) {
  for (const GemmCase& c : gemm_cases(true)) {
    // dx [T, K] from dy [T, N]: a row-parallel weight lies in groups of ks columns.
    const int64_t groups = c.row_parallel ? kSlices : 1, gk = c.K / groups, ns = c.N / kSlices;
    if (ns % 16 != 0 || gk % 8 != 0) continue;
    const Operands in(c.T, c.K, c.N);
    const DeviceArray<bf16> dy(*strict_, in.x);
    const bf16* w = weights(in.w);
    const auto [strict, native] =
        both<float>(static_cast<size_t>(c.T * c.K), [&](const Ops& ops, float* dx) {
          ops.gemm_dgrad(nullptr, {.dy = dy.data(),
                                   .w = w,
                                   .dx = dx,
                                   .T = c.T,
                                   .ns = ns,
                                   .gk = gk,
                                   .slices = kSlices,
                                   .groups = static_cast<int>(groups),
                                   .lddy = c.N,
                                   .w_slice = ns * gk,
                                   .w_group = c.N * gk,
                                   .ldw = gk,
                                   .lddx = c.K,
                                   .out_f32 = true});
        });
    EXPECT_TRUE(close_sums("dgrad " + c.text(), native, strict, c.N));
  }
}

TEST_F(Native, WgradIsCloseForAnyLeaves) {
  for (const WgradCase& c : wgrad_cases()) {
    Leaves leaves{.count = c.leaves, .begin = {}};
    for (int l = 0; l < c.leaves; ++l) leaves.begin[l + 1] = leaves.begin[l] + 64 * c.units[l];
    const int64_t T = leaves.begin[c.leaves], gk = c.K / c.groups;
    const Operands in(c.N, c.K, std::max<int64_t>(T, 1));
    const DeviceArray<bf16> dy(*strict_, in.x), x(*strict_, in.w);
    const auto [strict, native] =
        both<float>(static_cast<size_t>(c.N * c.K), [&](const Ops& ops, float* dw) {
          ops.gemm_wgrad(nullptr, {.dy = dy.data(),
                                   .x = x.data(),
                                   .dw = dw,
                                   .N = c.N,
                                   .gk = gk,
                                   .groups = c.groups,
                                   .leaves = leaves,
                                   .lddy = c.N,
                                   .ldx = c.K,
                                   .dw_group = c.N * gk,
                                   .lddw = gk});
        });
    EXPECT_TRUE(close_sums("wgrad " + c.text(), native, strict, std::max<int64_t>(T, 1)));
  }
}

// The copies that row-parallel weights need are as old as the last weights_changed.
TEST_F(Native, CopiesOfWeightsFollowThem) {
  constexpr int64_t kN = 64, kKs = 32;
  const DeviceArray<bf16> x(*strict_, std::vector<bf16>(kKs * kSlices, to_bf16(1.0f)));
  auto* w = const_cast<bf16*>(weights(std::vector<bf16>(kN * kKs * kSlices, to_bf16(1.0f))));
  DeviceArray<float> y(*strict_, static_cast<size_t>(kN));
  const auto multiply = [&] {
    native_->gemm(nullptr, {.x = x.data(),
                            .w = w,
                            .y = y.data(),
                            .T = 1,
                            .N = kN,
                            .ks = kKs,
                            .slices = kSlices,
                            .ldx = kKs * kSlices,
                            .w_slice = kN * kKs,
                            .ldw = kKs,
                            .ldy = kN,
                            .out_f32 = true});
    native_->synchronize(nullptr);
    return y.host().back();
  };
  EXPECT_EQ(multiply(), 256.0f);
  const std::vector<bf16> twos(kN * kKs * kSlices, to_bf16(2.0f));
  strict_->copy(nullptr, w, twos.data(), twos.size() * sizeof(bf16));
  strict_->synchronize(nullptr);
  EXPECT_EQ(multiply(), 256.0f) << "the old copy, since nobody said that the weights changed";
  native_->weights_changed(nullptr);
  EXPECT_EQ(multiply(), 512.0f);
}

// The last position of every sequence, `batch` times over.
std::vector<bf16> decode(const Ops& ops, const AttentionData& data, const PagedCache& cache,
                         int batch) {
  const AttentionCase& c = data.c;
  const int sequences = static_cast<int>(c.lengths.size()), rows = sequences * batch;
  const auto width = static_cast<size_t>(c.H * c.Dh);
  std::vector<bf16> q;
  std::vector<AttentionSegment> segments;
  for (int r = 0; r < rows; ++r) {
    const int s = r % sequences, last = data.begin[s + 1] - 1;
    q.insert(q.end(), data.q.begin() + last * static_cast<int64_t>(width),
             data.q.begin() + (last + 1) * static_cast<int64_t>(width));
    segments.push_back({s, c.lengths[s] - 1, 1, r});
  }
  const DeviceArray<bf16> queries(ops, q);
  const DeviceArray<AttentionSegment> where(ops, segments);
  DeviceArray<bf16> o(ops, q.size());
  AttentionArgs args{.q = queries.data(),
                     .cache = cache.view(),
                     .segments = where.data(),
                     .n_segments = rows,
                     .max_len = 1,
                     .max_context = *std::max_element(c.lengths.begin(), c.lengths.end()),
                     .o = o.data(),
                     .lse = nullptr,
                     .T = rows,
                     .H = c.H,
                     .KH = c.KH,
                     .Dh = c.Dh,
                     .scale = data.scale(),
                     .workspace = nullptr};
  DeviceArray<unsigned char> workspace(ops, ops.attention_workspace(args) + 256);
  args.workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
  ops.attention(nullptr, args);
  ops.synchronize(nullptr);
  const std::vector<bf16> all = o.host();
  return {all.begin(), all.begin() + static_cast<int64_t>(width) * sequences};
}

TEST_F(Native, DecodeIsCloseForAnyBatch) {
  for (const AttentionCase& c : attention_cases(true)) {
    const AttentionData data(c);
    const PagedCache cache(*strict_, data, {.heads_outside = true});
    const std::vector<bf16> strict = decode(*strict_, data, cache, 1);
    for (int batch : {1, 7, 64})
      // P and o are rounded to bf16, over values of some units
      EXPECT_TRUE(close_to(c.text() + " x " + std::to_string(batch),
                           decode(*native_, data, cache, batch), values(strict), {8e-3, 1.0}));
  }
}

// The control is one: its bits follow the shape of the batch, the strict ones do not.
TEST_F(Native, DecodeFollowsTheBatch) {
  const AttentionData data({"long", 32, 8, 128, {1000, 1003}});
  const PagedCache cache(*strict_, data, {.heads_outside = true});
  EXPECT_TRUE(
      same_bits("strict", decode(*strict_, data, cache, 1), decode(*strict_, data, cache, 64)));
  EXPECT_FALSE(
      same_bits("native", decode(*native_, data, cache, 1), decode(*native_, data, cache, 64)));
}

TEST_F(Native, LogprobsAreCloseAndFollowTheBatch) {
  constexpr int64_t kSliceRows = 19072, kVocab = 151936;
  Random random(5);
  const std::vector<bf16> row = random.bf16s(static_cast<size_t>(kSliceRows * kSlices), 3.0f);
  const auto logp = [&](const Ops& ops, int64_t T, int slices, const std::vector<uint32_t>& limit) {
    const int ranks = kSlices / slices;
    std::vector<SliceStats> all;
    for (int r = 0; r < ranks; ++r) {
      std::vector<bf16> part;
      const auto width = static_cast<int64_t>(slices) * kSliceRows;
      for (int64_t t = 0; t < T; ++t)
        part.insert(part.end(), row.begin() + r * width, row.begin() + (r + 1) * width);
      const DeviceArray<bf16> x(ops, part);
      const DeviceArray<float> inv_temp(ops, std::vector<float>(static_cast<size_t>(T), 1.25f));
      const DeviceArray<int32_t> target(ops, std::vector<int32_t>(static_cast<size_t>(T), 77));
      const DeviceArray<int32_t> error(ops, std::vector<int32_t>(1, 0));
      const DeviceArray<uint32_t> threshold(
          ops, limit.empty() ? std::vector<uint32_t>(1) : std::vector<uint32_t>(T, limit[0]));
      DeviceArray<SliceStats> stats(ops, static_cast<size_t>(T * slices));
      ops.logprob_stats(nullptr,
                        {.logits = {x.data(), T, width, kSliceRows, r * slices, slices, kVocab},
                         .inv_temp = inv_temp.data(),
                         .threshold = limit.empty() ? nullptr : threshold.data(),
                         .target = target.data(),
                         .stats = stats.data(),
                         .error = error.data()});
      const auto mine = stats.host();
      all.insert(all.end(), mine.begin(), mine.end());
      EXPECT_EQ(error.host()[0], 0);
    }
    const DeviceArray<SliceStats> stats(ops, all);
    DeviceArray<float> out(ops, static_cast<size_t>(T)), lse(ops, static_cast<size_t>(T));
    ops.logprob_merge(nullptr, {stats.data(), ranks, T, out.data(), lse.data()});
    return out.host();
  };
  // Keeps values from 1 up: about a third.
  const std::vector<uint32_t> limit = {0x8000u + to_bf16(1.0f).bits};
  for (const auto& threshold : {std::vector<uint32_t>{}, limit}) {
    const float want = logp(*strict_, 1, 8, threshold)[0];
    for (int slices : {8, 4, 1})
      for (int64_t T : {1, 300})
        for (float got : logp(*native_, T, slices, threshold))
          if (std::isfinite(want))
            EXPECT_NEAR(got, want, 5e-6) << slices << " slices, " << T << " rows";
          else
            EXPECT_EQ(got, want);
  }
  EXPECT_EQ(logp(*strict_, 1, 8, {})[0], logp(*strict_, 300, 1, {})[0]);
}

// A NaN is an error in every mode.
TEST_F(Native, ANanAmongTheLogitsIsAnError) {
  std::vector<bf16> row(1024 * kSlices, to_bf16(0.5f));
  row[5000] = bf16{0x7fc0};
  const DeviceArray<bf16> x(*native_, row);
  const DeviceArray<float> inv_temp(*native_, std::vector<float>{1.0f});
  const DeviceArray<int32_t> target(*native_, std::vector<int32_t>{0}),
      error(*native_, std::vector<int32_t>{0});
  DeviceArray<SliceStats> stats(*native_, size_t{kSlices});
  native_->logprob_stats(nullptr, {.logits = {x.data(), 1, 1024 * kSlices, 1024, 0, kSlices, 8000},
                                   .inv_temp = inv_temp.data(),
                                   .threshold = nullptr,
                                   .target = target.data(),
                                   .stats = stats.data(),
                                   .error = error.data()});
  EXPECT_EQ(error.host()[0], 1);
}

// ---- What the table costs over the bare library -----------------------------------------------

float microseconds(const std::function<void()>& run, int times) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin, nullptr);
  for (int i = 0; i < times; ++i) run();
  cudaEventRecord(end, nullptr);
  cudaEventSynchronize(end);
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms * 1000 / static_cast<float>(times);
}

// Medians of rounds in turn, warm; 20 calls a round, 2 ms at least.
void race(const char* name, const std::function<void()>& native, const std::function<void()>& bare,
          const std::function<void()>& strict) {
  constexpr int kRounds = 15;
  const std::function<void()> runners[] = {native, bare, strict};
  std::vector<float> times[3];
  const int calls = std::max(20, static_cast<int>(2000 / microseconds(bare, 5)));
  for (int round = 0; round < kRounds + 3; ++round)
    for (int i = 0; i < 3; ++i) {
      const float us = microseconds(runners[i], calls);
      if (round >= 3) times[i].push_back(us);
    }
  for (auto& t : times) std::sort(t.begin(), t.end());
  const auto median = [&](int i) { return times[i][kRounds / 2]; };
  std::printf(
      "%-26s native %8.1f us  cublaslt %8.1f us  strict %8.1f us  native/cublaslt %.3f  "
      "strict/native %.3f\n",
      name, median(0), median(1), median(2), median(0) / median(1), median(2) / median(0));
}

TEST_F(Native, DISABLED_TimingsBesideTheBareLibrary) {
  const auto buffer = [&](int64_t n) { return static_cast<bf16*>(strict_->alloc(n * 2)); };
  bf16 *x = buffer(int64_t{4096} * 24576), *w = buffer(int64_t{24576} * 4096),
       *y = buffer(int64_t{4096} * 24576);
  auto* f32 = static_cast<float*>(strict_->alloc(size_t{24576} * 4096 * 4));
  for (const auto& [to, n] :
       {std::pair(x, int64_t{4096} * 24576), std::pair(w, int64_t{24576} * 4096)})
    strict_->init_normal(
        nullptr,
        {.w = to, .n = n, .first = 0, .seed = 3, .tensor = static_cast<uint64_t>(n), .std = 1.f});
  void* workspace = strict_->alloc(Matmul::kWorkspace);
  for (const int64_t T : {int64_t{4096}, int64_t{64}, int64_t{8}}) {
    const auto forward = [&](const char* name, int64_t N, int64_t K, bool row) {
      const GemmArgs a{.x = x,
                       .w = w,
                       .y = y,
                       .T = T,
                       .N = N,
                       .ks = K / kSlices,
                       .slices = kSlices,
                       .ldx = K,
                       .w_slice = row ? N * K / kSlices : K / kSlices,
                       .ldw = row ? K / kSlices : K,
                       .ldy = N,
                       .out_f32 = false};
      const auto bare = Matmul::make({.M = T,
                                      .N = N,
                                      .K = K,
                                      .a_by_columns = false,
                                      .b_by_columns = true,
                                      .out_f32 = false,
                                      .alignment = 256},
                                     workspace);
      race((std::string(name) + " T=" + std::to_string(T)).c_str(),
           [&] { native_->gemm(nullptr, a); }, [&] { bare->run(nullptr, x, w, y); },
           [&] { strict_->gemm(nullptr, a); });
    };
    forward("qkv", 6144, 4096, false);
    forward("o", 4096, 4096, true);
    forward("gate_up", 24576, 4096, false);
    forward("down", 4096, 12288, true);
  }
  constexpr int64_t T = 4096, N = 4096, K = 12288, ks = K / kSlices;
  const GemmDgradArgs d{.dy = y,
                        .w = w,
                        .dx = x,
                        .T = T,
                        .ns = N / kSlices,
                        .gk = ks,
                        .slices = kSlices,
                        .groups = kSlices,
                        .lddy = N,
                        .w_slice = N / kSlices * ks,
                        .w_group = N * ks,
                        .ldw = ks,
                        .lddx = K,
                        .out_f32 = false};
  const auto dgrad = Matmul::make({.M = T,
                                   .N = K,
                                   .K = N,
                                   .a_by_columns = false,
                                   .b_by_columns = false,
                                   .out_f32 = false,
                                   .alignment = 256},
                                  workspace);
  race(
      "down dgrad T=4096", [&] { native_->gemm_dgrad(nullptr, d); },
      [&] { dgrad->run(nullptr, y, w, x); }, [&] { strict_->gemm_dgrad(nullptr, d); });
  Leaves leaves{.count = kSlices, .begin = {}};
  for (int l = 0; l <= kSlices; ++l) leaves.begin[l] = T / kSlices * l;
  const GemmWgradArgs g{.dy = y,
                        .x = x,
                        .dw = f32,
                        .N = N,
                        .gk = ks,
                        .groups = kSlices,
                        .leaves = leaves,
                        .lddy = N,
                        .ldx = K,
                        .dw_group = N * ks,
                        .lddw = ks};
  const auto wgrad = Matmul::make({.M = N,
                                   .N = K,
                                   .K = T,
                                   .a_by_columns = true,
                                   .b_by_columns = false,
                                   .out_f32 = true,
                                   .alignment = 256},
                                  workspace);
  race(
      "down wgrad T=4096", [&] { native_->gemm_wgrad(nullptr, g); },
      [&] { wgrad->run(nullptr, y, x, f32); }, [&] { strict_->gemm_wgrad(nullptr, g); });
}

}  // namespace
}  // namespace rlk::test
