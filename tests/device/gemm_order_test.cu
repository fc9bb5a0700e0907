// The three GEMMs against an independent statement of their order: mma.sync m16n8k16 chains from
// +0, one a slice, joined by the aligned tree. Every element, bit for bit, for every Qwen3 size and
// TP size, on every path. Also the error against fp64, printed for docs/numerics.md. Skipped where
// there is no sm_90 device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/launchers.h"

namespace rlk::test {
namespace {

using cuda::check;

// ---- Device helpers -----------------------------------------------------------------------------

// Element (row, k) of slice s and group g is p[row*row_stride + k*k_stride + s*slice + g*group].
struct Operand {
  const bf16* p;
  int64_t row_stride, k_stride, slice, group;
};

struct Chains {
  int count;
  int64_t begin[kSlices], length[kSlices];
};

__device__ uint16_t element(const Operand& o, int64_t row, int64_t k, int s, int64_t g) {
  return o.p[row * o.row_stride + k * o.k_stride + s * o.slice + g * o.group].bits;
}
__device__ uint32_t element_pair(const Operand& o, int64_t row, int64_t k, int s, int64_t g,
                                 bool inside) {
  if (!inside) return 0;
  return element(o, row, k, s, g) | static_cast<uint32_t>(element(o, row, k + 1, s, g)) << 16;
}

// One warp: 16 rows by 8 columns of one group. out [groups][M][N] f32.
__global__ void oracle_kernel(Operand a, Operand b, Chains chains, int64_t M, int64_t N,
                              float* out) {
  const int lane = threadIdx.x, row = lane / 4, quad = lane % 4;
  const int64_t m0 = int64_t{blockIdx.x} * 16, n0 = int64_t{blockIdx.y} * 8, g = blockIdx.z;
  const bool top = m0 + row < M, bottom = m0 + row + 8 < M;
  float leaf[kSlices][4] = {};
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    if (s >= chains.count) break;
    for (int64_t k = chains.begin[s]; k < chains.begin[s] + chains.length[s]; k += 16) {
      const int64_t k0 = k + quad * 2;
      const uint32_t a0 = element_pair(a, m0 + row, k0, s, 0, top);
      const uint32_t a1 = element_pair(a, m0 + row + 8, k0, s, 0, bottom);
      const uint32_t a2 = element_pair(a, m0 + row, k0 + 8, s, 0, top);
      const uint32_t a3 = element_pair(a, m0 + row + 8, k0 + 8, s, 0, bottom);
      const uint32_t b0 = element_pair(b, n0 + row, k0, s, g, true);
      const uint32_t b1 = element_pair(b, n0 + row, k0 + 8, s, g, true);
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
          "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(leaf[s][0]), "+f"(leaf[s][1]), "+f"(leaf[s][2]), "+f"(leaf[s][3])
          : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t m = m0 + row + i / 2 * 8;
    if (m >= M) continue;
    const float p01 = leaf[0][i] + leaf[1][i], p23 = leaf[2][i] + leaf[3][i];
    const float p45 = leaf[4][i] + leaf[5][i], p67 = leaf[6][i] + leaf[7][i];
    const float sum = chains.count == 1   ? leaf[0][i]
                      : chains.count == 2 ? p01
                      : chains.count == 4 ? p01 + p23
                                          : (p01 + p23) + (p45 + p67);
    out[(g * M + m) * N + n0 + quad * 2 + i % 2] = sum;
  }
}

// |got - exact| and the sum of the terms' magnitudes, at samples spread over [groups][M][N]: worst
// ratio and mean square figures.
__global__ void error_kernel(Operand a, Operand b, Chains chains, int64_t M, int64_t N,
                             int64_t groups, const float* got, double* sums) {
  const uint64_t h = (blockIdx.x + 1) * 0x9E3779B97F4A7C15ull;
  const int64_t at = static_cast<int64_t>((h ^ h >> 31) % static_cast<uint64_t>(groups * M * N));
  const int64_t g = at / (M * N), m = at / N % M, n = at % N;
  double exact = 0;
  for (int s = 0; s < chains.count; ++s)
    for (int64_t k = threadIdx.x; k < chains.length[s]; k += 32)
      exact += static_cast<double>(
                   __uint_as_float(uint32_t{element(a, m, chains.begin[s] + k, s, 0)} << 16)) *
               __uint_as_float(uint32_t{element(b, n, chains.begin[s] + k, s, g)} << 16);
  for (int o = 16; o > 0; o /= 2) exact += __shfl_xor_sync(0xffffffffu, exact, o);
  if (threadIdx.x == 0) {
    atomicAdd(sums, (got[at] - exact) * (got[at] - exact));
    atomicAdd(sums + 1, exact * exact);
  }
}

// Elements of y that are not the oracle's (rounded if y is bf16), and poison that was overwritten
// or left.
__global__ void compare_kernel(const float* want, const void* y, bool f32, int64_t rows,
                               int64_t guard, int64_t N, int64_t ld, int64_t group, int64_t groups,
                               int64_t M, unsigned long long* differing,
                               unsigned long long* first) {
  const int64_t total = (rows + guard) * groups * N;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t m = i / (groups * N), c = i % (groups * N), g = c / N, n = c % N;
    const int64_t at = m * ld + g * group + n;
    const uint32_t got =
        f32 ? static_cast<const uint32_t*>(y)[at] : static_cast<const uint16_t*>(y)[at];
    uint32_t expected = f32 ? 0xffffffffu : 0xffffu;  // the poison past the last row
    if (m < rows) {
      const uint32_t u = __float_as_uint(want[(g * M + m) * N + n]);
      expected = f32 ? u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    }
    if (got == expected) continue;
    atomicAdd(differing, 1ull);
    atomicMin(first, static_cast<unsigned long long>(i));
  }
}

__global__ void fill_kernel(uint16_t* p, int64_t n, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x =
        (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    float sum = -2.0f;  // four uniforms: near normal
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(x >> (16 * j) & 0xffff) * 0x1p-16f;
    const uint32_t u = __float_as_uint(sum * 1.7320508f * scale);
    p[i] = static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t n) : n_(n) {
    check(cudaMalloc(&p_, static_cast<size_t>(n) * sizeof(T)), "cudaMalloc");
  }
  ~DeviceArray() { cudaFree(p_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return p_; }
  void poison() const {
    check(cudaMemset(p_, 0xff, static_cast<size_t>(n_) * sizeof(T)), "cudaMemset");
  }
  void randomize(uint64_t seed, float scale) const {
    fill_kernel<<<1024, 256>>>(reinterpret_cast<uint16_t*>(p_), n_, seed, scale);
    cuda::check_launch("fill");
  }

 private:
  T* p_ = nullptr;
  int64_t n_;
};

// ---- The problem, once for the three ops
// ----------------------------------------------------------

struct Problem {
  std::string name;
  Operand a, b;
  Chains chains;
  int64_t M, N, groups;
};

class GemmOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    int device = 0, major = 0;
    const bool there =
        cudaGetDeviceCount(&device) == cudaSuccess && device > 0 &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
        major == 9;
    if (there) return;
    (void)cudaGetLastError();
    if (std::getenv("RLK_REQUIRE_CUDA"))
      FAIL() << "RLK_REQUIRE_CUDA is set, and there is no sm_90 device";
    GTEST_SKIP() << "no sm_90 device";
  }

  void oracle(const Problem& p, float* out) {
    const dim3 grid(static_cast<unsigned>((p.M + 15) / 16), static_cast<unsigned>(p.N / 8),
                    static_cast<unsigned>(p.groups));
    oracle_kernel<<<grid, 32>>>(p.a, p.b, p.chains, p.M, p.N, out);
    cuda::check_launch("oracle");
  }

  // y [rows, ld] (group columns apart), then `guard` rows that must still be poison.
  ::testing::AssertionResult equal(const Problem& p, const float* want, const void* y, bool f32,
                                   int64_t rows, int64_t guard, int64_t ld, int64_t group,
                                   const std::string& how) {
    DeviceArray<unsigned long long> counts(2);
    const unsigned long long start[2] = {0, ~0ull};
    check(cudaMemcpy(counts.data(), start, sizeof start, cudaMemcpyHostToDevice), "cudaMemcpy");
    compare_kernel<<<1024, 256>>>(want, y, f32, rows, guard, p.N, ld, group, p.groups, p.M,
                                  counts.data(), counts.data() + 1);
    unsigned long long found[2];
    check(cudaMemcpy(found, counts.data(), sizeof found, cudaMemcpyDeviceToHost), "compare");
    if (found[0] == 0) return ::testing::AssertionSuccess();
    const auto at = static_cast<int64_t>(found[1]), width = p.groups * p.N;
    const int64_t m = at / width, g = at % width / p.N, n = at % p.N;
    uint32_t got = 0, expected = 0xffffffffu;
    const size_t size = f32 ? 4 : 2;
    check(
        cudaMemcpy(&got,
                   static_cast<const char*>(y) + static_cast<size_t>(m * ld + g * group + n) * size,
                   size, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    if (m < rows)
      check(cudaMemcpy(&expected, want + (g * p.M + m) * p.N + n, 4, cudaMemcpyDeviceToHost),
            "cudaMemcpy");
    char values[64];
    std::snprintf(values, sizeof values, "0x%08x, want (f32) 0x%08x", got, expected);
    return ::testing::AssertionFailure()
           << p.name << " " << how << ": " << found[0] << " elements differ, first row " << m
           << " group " << g << " column " << n << ": " << values;
  }

  void print_error(const Problem& p, const float* got) {
    DeviceArray<double> sums(2);
    check(cudaMemset(sums.data(), 0, 16), "cudaMemset");
    error_kernel<<<4096, 32>>>(p.a, p.b, p.chains, p.M, p.N, p.groups, got, sums.data());
    double found[2];
    check(cudaMemcpy(found, sums.data(), sizeof found, cudaMemcpyDeviceToHost), "error");
    std::printf("  error %-52s %.3e\n", p.name.c_str(), std::sqrt(found[0] / found[1]));
  }
};

// ---- Shapes
// -----------------------------------------------------------------------------------------

struct Qwen {
  const char* name;
  int64_t D, F, H;
};
// KH = 8, Dh = 128, V' = 152576.
constexpr Qwen kModels[] = {{"0.6B", 1024, 3072, 16}, {"1.7B", 2048, 6144, 16},
                            {"4B", 2560, 9728, 32},   {"8B", 4096, 12288, 32},
                            {"14B", 5120, 17408, 40}, {"32B", 5120, 25600, 64}};
constexpr int64_t kVocabSlice = 152576 / 8;

// One layer: column-parallel w [N, K] cut by rows, or row-parallel w slice-major [8][N, K/8].
struct LayerShape {
  std::string name;
  int64_t N, K;
  bool row_parallel;
};

std::vector<LayerShape> small_layers() {
  return {{"tiny qkv", 2048, 128, false},    {"tiny o", 128, 1024, true},
          {"tiny gate_up", 768, 128, false}, {"tiny down", 128, 384, true},
          {"tiny logits", 1024, 128, false}, {"odd", 136, 1280, true}};
}

std::vector<LayerShape> qwen3_layers() {
  std::vector<LayerShape> all = {{"8B logits", 8 * kVocabSlice, 4096, false}};
  for (const Qwen& m : kModels) {
    const std::string name = m.name;
    all.push_back({name + " qkv", (m.H + 16) * 128, m.D, false});
    all.push_back({name + " o", m.D, m.H * 128, true});
    all.push_back({name + " gate_up", 2 * m.F, m.D, false});
    all.push_back({name + " down", m.D, m.F, true});
  }
  return all;
}

std::vector<uint16_t> bits(const DeviceArray<bf16>& from, int64_t n) {
  std::vector<uint16_t> to(static_cast<size_t>(n));
  check(cudaMemcpy(to.data(), from.data(), to.size() * sizeof(uint16_t), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return to;
}

// Every claim for the small shapes (those compute-sanitizer runs) and for all six Qwen3 sizes.
class GemmOrderOf : public GemmOrder, public ::testing::WithParamInterface<std::string> {
 protected:
  static bool small() { return GetParam() == "small"; }
  static std::vector<LayerShape> layers() { return small() ? small_layers() : qwen3_layers(); }
};
INSTANTIATE_TEST_SUITE_P(Shapes, GemmOrderOf, ::testing::Values("small", "qwen3"),
                         [](const auto& param) { return std::string(param.param); });

// ---- gemm
// -------------------------------------------------------------------------------------------

class Forward {
 public:
  Forward(const LayerShape& l, int tp, int64_t T, const bf16* x, const bf16* w)
      : slices(l.row_parallel ? 8 / tp : 8), ks(l.K / 8) {
    N = l.row_parallel ? l.N : l.N / tp;
    args = {x,
            w,
            nullptr,
            T,
            N,
            ks,
            slices,
            slices * ks,
            l.row_parallel ? N * ks : ks,
            l.row_parallel ? ks : l.K,
            N,
            false};
    problem.name = l.name + " tp " + std::to_string(tp);
    problem.a = {x, args.ldx, 1, ks, 0};
    problem.b = {w, args.ldw, 1, args.w_slice, 0};
    problem.chains.count = slices;
    for (int s = 0; s < slices; ++s) problem.chains.length[s] = ks;
    problem.M = T, problem.N = N, problem.groups = 1;
  }
  GemmArgs args{};
  Problem problem{};
  int slices;
  int64_t ks, N;
};

TEST_P(GemmOrderOf, ForwardEqualsTheChainAndTreeForEverySizeAndRankCount) {
  constexpr int64_t kT = 300;
  for (const LayerShape& l : layers()) {
    DeviceArray<bf16> x(kT * l.K), w(l.N * l.K);
    x.randomize(1, 1.0f), w.randomize(2, 0.05f);
    for (const int tp : {1, 2, 4, 8}) {
      if (!l.row_parallel && l.N / tp % 8 != 0) continue;
      Forward f(l, tp, kT, x.data(), w.data());
      DeviceArray<float> want(kT * f.N), y(kT * f.N);
      oracle(f.problem, want.data());
      if (tp == 1) print_error(f.problem, want.data());
      for (const int64_t T : {1, 7, 16, 33, 64, 65, 128, 129, 300})
        for (const bool f32 : {false, true}) {
          y.poison();
          f.args.T = T, f.args.y = y.data(), f.args.out_f32 = f32;
          f.args.w_ready = T % 2 == 1;
          cuda::gemm(nullptr, f.args);
          EXPECT_TRUE(equal(f.problem, want.data(), y.data(), f32, T, std::min<int64_t>(kT - T, 70),
                            f.N, 0, "T " + std::to_string(T) + (f32 ? " f32" : " bf16")));
        }
      if (HasFailure()) return;
    }
  }
}

TEST_P(GemmOrderOf, ForwardPathsAgree) {
  const std::vector<LayerShape> shapes =
      small() ? small_layers() : std::vector<LayerShape>{{"4B down", 2560, 9728, true}};
  for (const LayerShape& l : shapes) {
    constexpr int64_t kT = 64;
    DeviceArray<bf16> x(kT * l.K), w(l.N * l.K);
    x.randomize(3, 1.0f), w.randomize(4, 0.05f);
    for (const int tp : {1, 4, 8}) {
      Forward f(l, tp, kT, x.data(), w.data());
      DeviceArray<float> want(kT * f.N), y(kT * f.N);
      oracle(f.problem, want.data());
      f.args.y = y.data(), f.args.out_f32 = true;
      for (const int64_t T : {1, 9, 16, 17, 40, 64}) {
        f.args.T = T;
        y.poison();
        cuda::gemm_tiles(nullptr, f.args);
        EXPECT_TRUE(equal(f.problem, want.data(), y.data(), true, T, kT - T, f.N, 0,
                          "tiles T " + std::to_string(T)));
        for (const int rows : cuda::kDecodeRows) {
          y.poison();
          cuda::gemm_decode(nullptr, f.args, rows);
          EXPECT_TRUE(equal(f.problem, want.data(), y.data(), true, T, kT - T, f.N, 0,
                            "decode " + std::to_string(rows) + " rows, T " + std::to_string(T)));
        }
      }
    }
  }
}

// gemm_swiglu against gemm and then swiglu, in every tile, for the FFN of every size on one, two
// and eight ranks.
TEST_P(GemmOrderOf, GatedTilesAgree) {
  for (const LayerShape& l : layers()) {
    if (l.name.find("gate_up") == std::string::npos) continue;
    constexpr int64_t kT = 64;
    DeviceArray<bf16> x(kT * l.K), w(l.N * l.K);
    x.randomize(5, 1.0f), w.randomize(6, 0.05f);
    for (const int tp : {1, 2, 8}) {
      Forward f(l, tp, kT, x.data(), w.data());
      const int64_t fs = l.N / 16;
      const int slices = 8 / tp;
      DeviceArray<bf16> gate_up(kT * f.N), want(kT * slices * fs), act(kT * slices * fs);
      for (const int64_t T : {1, 8, 17, 64}) {
        f.args.T = T, f.args.y = gate_up.data(), f.args.w_ready = T == 8;
        cuda::gemm(nullptr, f.args);
        cuda::swiglu(nullptr, {gate_up.data(), want.data(), T, fs, slices});
        const std::vector<uint16_t> expected = bits(want, T * slices * fs);
        for (const int rows : cuda::kGatedRows) {
          act.poison();
          cuda::gemm_swiglu_decode(nullptr, {f.args, act.data(), fs, slices}, rows);
          const std::vector<uint16_t> got = bits(act, kT * slices * fs);
          const auto end = got.begin() + T * slices * fs;
          EXPECT_TRUE(std::equal(got.begin(), end, expected.begin()))
              << l.name << " tp " << tp << " rows " << rows << " T " << T;
          EXPECT_TRUE(std::all_of(end, got.end(), [](uint16_t e) { return e == 0xffffu; }))
              << l.name << " wrote past the last row, rows " << rows << " T " << T;
        }
      }
    }
    if (HasFailure()) return;
  }
}

TEST_F(GemmOrder, ForwardOfTrainingSizesEqualsDecodeBits) {
  constexpr int64_t kT = 4096;
  for (const LayerShape& l :
       {LayerShape{"8B qkv", 6144, 4096, false}, LayerShape{"8B down", 4096, 12288, true}}) {
    DeviceArray<bf16> x(kT * l.K), w(l.N * l.K);
    x.randomize(5, 1.0f), w.randomize(6, 0.05f);
    Forward f(l, 1, kT, x.data(), w.data());
    DeviceArray<float> want(kT * f.N), y(kT * f.N);
    oracle(f.problem, want.data());
    f.args.y = y.data();
    for (const int64_t T : {1, 8, 64, 1024, 4095, 4096}) {
      y.poison();
      f.args.T = T;
      cuda::gemm(nullptr, f.args);
      EXPECT_TRUE(equal(f.problem, want.data(), y.data(), false, T, std::min<int64_t>(kT - T, 64),
                        f.N, 0, "T " + std::to_string(T)));
    }
  }
}

// A wrong order must not pass: four chains of double length differ from eight.
TEST_F(GemmOrder, TheOracleTellsOrdersApart) {
  const LayerShape l{"8B qkv", 768, 4096, false};
  constexpr int64_t kT = 64;
  DeviceArray<bf16> x(kT * l.K), w(l.N * l.K);
  x.randomize(7, 1.0f), w.randomize(8, 0.05f);
  Forward f(l, 1, kT, x.data(), w.data());
  DeviceArray<float> want(kT * f.N), y(kT * f.N);
  oracle(f.problem, want.data());
  f.args.y = y.data(), f.args.out_f32 = true;
  f.args.slices = 4, f.args.ks = 2 * f.ks, f.args.w_slice = 2 * f.ks;
  cuda::gemm(nullptr, f.args);
  EXPECT_FALSE(equal(f.problem, want.data(), y.data(), true, kT, 0, f.N, 0, "four slices"));
}

// Kernels that start before their predecessor ends must still read what it wrote.
TEST_F(GemmOrder, DependentLaunchesInAGraphSeeTheirInputs) {
  constexpr int64_t kT = 16, kD = 4096;
  DeviceArray<bf16> w(kD * kD), h(2 * kT * kD), again(2 * kT * kD);
  w.randomize(9, 0.02f), h.randomize(10, 1.0f);
  check(cudaMemcpy(again.data(), h.data(), 2 * kT * kD * sizeof(bf16), cudaMemcpyDeviceToDevice),
        "cudaMemcpy");
  const auto layer = [&](bf16* buffer, int i, cudaStream_t stream, bool ready) {
    GemmArgs a{buffer + i % 2 * kT * kD,
               w.data(),
               buffer + (i + 1) % 2 * kT * kD,
               kT,
               kD,
               kD / 8,
               8,
               kD,
               kD / 8,
               kD,
               kD,
               false,
               ready};
    cuda::gemm(stream, a);
  };
  constexpr int kLayers = 20;
  for (int i = 0; i < kLayers; ++i) {
    layer(again.data(), i, nullptr, false);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < kLayers; ++i) layer(h.data(), i, stream, true);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(stream), "graph");
  std::vector<bf16> a(2 * kT * kD), b(2 * kT * kD);
  check(cudaMemcpy(a.data(), h.data(), a.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(b.data(), again.data(), b.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_TRUE(a == b);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// ---- gemm_dgrad
// -------------------------------------------------------------------------------------

TEST_P(GemmOrderOf, DgradEqualsTheChainAndTreeForEverySizeAndRankCount) {
  constexpr int64_t kT = 300;
  for (const LayerShape& l : layers()) {
    DeviceArray<bf16> dy(kT * l.N), w(l.N * l.K);
    dy.randomize(11, 1.0f), w.randomize(12, 0.05f);
    for (const int tp : {1, 2, 4, 8}) {
      if (l.N / 8 % 16 != 0) continue;
      const int owned = 8 / tp;
      const int64_t ns = l.N / 8, ks = l.K / 8;
      GemmDgradArgs a{dy.data(), w.data(), nullptr, kT, ns, 0, 0, 0, 0, 0, 0, 0, 0, false};
      if (l.row_parallel) {
        a.slices = 8, a.groups = owned, a.gk = a.ldw = ks, a.w_slice = ns * ks,
        a.w_group = l.N * ks;
      } else {
        a.slices = owned, a.groups = 1, a.gk = a.ldw = l.K, a.w_slice = ns * l.K;
      }
      a.lddy = a.slices * ns, a.lddx = a.groups * a.gk;
      Problem p{l.name + " dgrad tp " + std::to_string(tp),
                {a.dy, a.lddy, 1, ns, 0},
                {a.w, 1, a.ldw, a.w_slice, a.w_group},
                {},
                kT,
                a.gk,
                a.groups};
      p.chains.count = a.slices;
      for (int s = 0; s < a.slices; ++s) p.chains.length[s] = ns;
      DeviceArray<float> want(kT * a.lddx), dx(kT * a.lddx);
      oracle(p, want.data());
      if (tp == 1) print_error(p, want.data());
      a.dx = dx.data();
      for (const int64_t T : {1, 65, 300})
        for (const bool f32 : {false, true}) {
          dx.poison();
          a.T = T, a.out_f32 = f32;
          cuda::gemm_dgrad(nullptr, a);
          EXPECT_TRUE(equal(p, want.data(), dx.data(), f32, T, std::min<int64_t>(kT - T, 70),
                            a.lddx, a.gk, "T " + std::to_string(T) + (f32 ? " f32" : " bf16")));
        }
      if (HasFailure()) return;
    }
  }
}

// ---- gemm_wgrad
// -------------------------------------------------------------------------------------

TEST_P(GemmOrderOf, WgradEqualsTheChainAndTreeForEverySizeAndLeaves) {
  const std::vector<std::vector<int>> units = {
      {1, 2, 1, 0, 3, 1, 1, 1}, {2, 0, 1, 1}, {0, 2}, {5}, {0, 0, 0, 1, 0, 0, 0, 0}};
  for (const LayerShape& l : layers()) {
    if (l.N > 100000) continue;  // a logits gradient of 2.5 GB adds nothing
    constexpr int64_t kTokens = 64 * 11;
    DeviceArray<bf16> dy(kTokens * l.N), x(kTokens * l.K);
    dy.randomize(13, 1.0f), x.randomize(14, 1.0f);
    DeviceArray<float> want(l.N * l.K), dw(l.N * l.K);
    for (const auto& u : units) {
      GemmWgradArgs a{dy.data(), x.data(), dw.data(), l.N, l.K, 1, {}, l.N, l.K, l.N * l.K, l.K};
      if (l.row_parallel) a.groups = 8, a.gk = a.lddw = l.K / 8, a.dw_group = l.N * a.gk;
      a.leaves.count = static_cast<int>(u.size());
      a.leaves.begin[0] = 64;  // a rank's share need not start at the first row
      for (int i = 0; i < a.leaves.count; ++i)
        a.leaves.begin[i + 1] = a.leaves.begin[i] + 64 * u[static_cast<size_t>(i)];
      Problem p{l.name + " wgrad leaves " + std::to_string(u.size()),
                {a.dy, 1, a.lddy, 0, 0},
                {a.x, 1, a.ldx, 0, a.gk},
                {},
                l.N,
                a.gk,
                a.groups};
      p.chains.count = a.leaves.count;
      for (int i = 0; i < a.leaves.count; ++i)
        p.chains.begin[i] = a.leaves.begin[i],
        p.chains.length[i] = a.leaves.begin[i + 1] - a.leaves.begin[i];
      oracle(p, want.data());
      if (u[0] == 1 && u.size() == 8) print_error(p, want.data());
      dw.poison();
      cuda::gemm_wgrad(nullptr, a);
      // dw is [groups][N][gk]: compare as rows of one group each.
      Problem flat = p;
      flat.M = p.M * p.groups, flat.groups = 1;
      EXPECT_TRUE(equal(flat, want.data(), dw.data(), true, flat.M, 0, a.gk, 0, ""));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rlk::test
