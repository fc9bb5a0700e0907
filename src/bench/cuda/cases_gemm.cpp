// GEMM: the projections and the head of Qwen3-8B, forward and both gradients at training sizes,
// forward at decode sizes whole and as a rank of 2, 4 or 8 sees it. cuBLASLt runs beside each, on
// the same buffers.

#include <cuda_runtime_api.h>

#include <cmath>

#include "../harness.h"
#include "kernels/common/check.h"
#include "rlk/device/matmul.h"

namespace rlk::bench {
namespace {

// Column-parallel: w [N, K], cut by rows. Row-parallel: w slice-major, cut by input slices.
struct Layer {
  int64_t N, K;
  bool row_parallel;
};
constexpr Layer kLayers[] = {{6144, 4096, false},
                             {4096, 4096, true},
                             {24576, 4096, false},
                             {4096, 12288, true},
                             {152576, 4096, false}};
constexpr double kSteadyMs = 150;  // dense bf16 work settles at the power limit after about 140 ms
constexpr int kSamples = 48;

std::string text(const char* size, int64_t T, int64_t N, int64_t K) {
  return std::string(size) + "=" + std::to_string(T) + " N=" + std::to_string(N) +
         " K=" + std::to_string(K);
}

// Element i of a vector that lies in device memory at p + i*stride, for i < n.
std::vector<double> column(const bf16* p, int64_t n, int64_t stride) {
  std::vector<bf16> host(static_cast<size_t>(n));
  cuda::check(cudaMemcpy2D(host.data(), sizeof(bf16), p, static_cast<size_t>(stride) * sizeof(bf16),
                           sizeof(bf16), host.size(), cudaMemcpyDeviceToHost),
              "cudaMemcpy2D");
  std::vector<double> out(host.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(host[i]);
  return out;
}

// One output element against fp64: got = sum of a*b, its error judged by the sum of the terms'
// magnitudes, plus a bf16 rounding.
std::string check_element(const std::string& where, double got, const std::vector<double>& a,
                          const std::vector<double>& b, bool bf16_out) {
  double want = 0, magnitude = 0;
  for (size_t i = 0; i < a.size(); ++i) want += a[i] * b[i], magnitude += std::fabs(a[i] * b[i]);
  const double allowed = 2e-5 * magnitude + (bf16_out ? 0x1p-8 * std::fabs(want) : 0.0);
  if (std::fabs(got - want) <= allowed) return "";
  return where + ": " + std::to_string(got) + ", expected " + std::to_string(want);
}

double element(const Buffers& b, const void* y, int64_t at, bool f32) {
  if (f32) return b.host(static_cast<const float*>(y) + at, 1)[0];
  return to_float(b.host(static_cast<const bf16*>(y) + at, 1)[0]);
}

int64_t spread(int i, int64_t n) {
  return i * int64_t{7919} % n;
}

void time_beside(Case& c, std::shared_ptr<const Matmul> m,
                 std::function<void(const Matmul&, Stream, int)> run) {
  if (!m) return;
  c.library = [m = std::move(m), run = std::move(run)](Stream s, int set) { run(*m, s, set); };
}

// cuBLASLt's x w^T: x [T, K], w [N, K].
std::shared_ptr<const Matmul> forward_matmul(Buffers& b, int64_t T, int64_t N, int64_t K,
                                             bool f32) {
  return Matmul::make({.M = T,
                       .N = N,
                       .K = K,
                       .a_by_columns = false,
                       .b_by_columns = true,
                       .out_f32 = f32,
                       .alignment = 256},
                      b.bytes(Matmul::kWorkspace));
}

// A rank of `ranks` sees N/ranks columns, or K/ranks inputs and an fp32 partial.
Case forward(Buffers& b, int64_t T, const Layer& layer, int ranks) {
  const int64_t N = layer.row_parallel ? layer.N : layer.N / ranks;
  const int64_t K = layer.row_parallel ? layer.K / ranks : layer.K, ks = layer.K / kSlices;
  const int slices = layer.row_parallel ? kSlices / ranks : kSlices;
  const bool f32 = layer.row_parallel && ranks > 1, decode = T <= 64;
  Case c;
  c.sets = sets_of(static_cast<double>(N * K) * 2 *
                   (decode ? 0.3 : 1));  // decode: ten times past the L2
  const bf16* x = b.normal(T * K);
  const bf16* w = b.normal(N * K * c.sets, 0.02f);
  void* y = b.bytes(static_cast<size_t>(T * N) * (f32 ? 4 : 2));
  const GemmArgs a{x,
                   w,
                   y,
                   T,
                   N,
                   ks,
                   slices,
                   K,
                   layer.row_parallel ? N * ks : ks,
                   layer.row_parallel ? ks : K,
                   N,
                   f32,
                   true};
  if (decode) {
    c.bytes = static_cast<double>(N * K) * 2;
  } else {
    c.flops = 2.0 * static_cast<double>(T) * static_cast<double>(N * K);
    c.warm_ms = kSteadyMs;
  }
  c.run = [=, &b](Stream s, int set) {
    GemmArgs now = a;
    now.w += set * N * K;
    b.ops().gemm(s, now);
  };
  c.verify = [=, &b] {
    std::string miss;
    for (int i = 0; i < kSamples && miss.empty(); ++i) {
      const int64_t t = spread(i, T), n = spread(i, N);
      std::vector<double> row;
      for (int s = 0; s < slices; ++s) {
        const auto part = column(a.w + s * a.w_slice + n * a.ldw, ks, 1);
        row.insert(row.end(), part.begin(), part.end());
      }
      miss = check_element("y[" + std::to_string(t) + "," + std::to_string(n) + "]",
                           element(b, y, t * N + n, f32), column(x + t * K, K, 1), row, !f32);
    }
    return miss;
  };
  time_beside(c, forward_matmul(b, T, N, K, f32),
              [=](const Matmul& m, Stream s, int set) { m.run(s, x, w + set * N * K, y); });
  return c;
}

// gate_up and SwiGLU in one op, beside cuBLASLt and then swiglu; the bits of gemm and then swiglu.
Case gated(Buffers& b, int64_t T, const Layer& layer) {
  const int64_t N = layer.N, K = layer.K, F = N / 2, fs = F / kSlices;
  Case c;
  c.bytes = static_cast<double>(N * K) * 2;
  c.sets = sets_of(c.bytes * 0.3);  // ten times past the L2
  const bf16* x = b.normal(T * K);
  const bf16* w = b.normal(N * K * c.sets, 0.02f);
  bf16* gate_up = b.array<bf16>(T * N);
  bf16* act = b.array<bf16>(T * F);
  const GemmArgs a{x, w, gate_up, T, N, K / kSlices, kSlices, K, K / kSlices, K, N, false, true};
  c.run = [=, &b](Stream s, int set) {
    GemmArgs now = a;
    now.w += set * N * K;
    b.ops().gemm_swiglu(s, {now, act, fs, kSlices});
  };
  c.verify = [=, &b]() -> std::string {
    const auto got = b.host(act, T * F);
    b.ops().gemm(nullptr, a);
    b.ops().swiglu(nullptr, {gate_up, act, T, fs, kSlices});
    return got == b.host(act, T * F) ? "" : "differs from gemm and then swiglu";
  };
  time_beside(c, forward_matmul(b, T, N, K, false), [=, &b](const Matmul& m, Stream s, int set) {
    m.run(s, x, w + set * N * K, gate_up);
    b.ops().swiglu(s, {gate_up, act, T, fs, kSlices});
  });
  return c;
}

Case dgrad(Buffers& b, int64_t T, const Layer& layer) {
  const int64_t N = layer.N, K = layer.K, ks = K / kSlices, ns = N / kSlices;
  Case c;
  c.flops = 2.0 * static_cast<double>(T) * static_cast<double>(N * K);
  c.warm_ms = kSteadyMs;
  const bf16* dy = b.normal(T * N);
  const bf16* w = b.normal(N * K, 0.02f);
  bf16* dx = b.array<bf16>(T * K);
  GemmDgradArgs a{dy, w, dx, T, ns, K, kSlices, 1, N, ns * K, 0, K, K, false};
  if (layer.row_parallel)
    a = {dy, w, dx, T, ns, ks, kSlices, kSlices, N, ns * ks, N * ks, ks, K, false};
  c.run = [a, &b](Stream s, int) { b.ops().gemm_dgrad(s, a); };
  c.verify = [=, &b] {
    std::string miss;
    for (int i = 0; i < 4 && miss.empty(); ++i) {
      const int64_t t = spread(i + 1, T), k = spread(i + 1, K), g = k / a.gk;
      miss = check_element("dx[" + std::to_string(t) + "," + std::to_string(k) + "]",
                           element(b, dx, t * K + k, false), column(dy + t * N, N, 1),
                           column(w + g * a.w_group + k % a.gk, N, a.ldw), true);
    }
    return miss;
  };
  time_beside(c,
              Matmul::make({.M = T,
                            .N = K,
                            .K = N,
                            .a_by_columns = false,
                            .b_by_columns = false,
                            .out_f32 = false,
                            .alignment = 256},
                           b.bytes(Matmul::kWorkspace)),
              [=](const Matmul& m, Stream s, int) { m.run(s, dy, w, dx); });
  return c;
}

Case wgrad(Buffers& b, int64_t T, const Layer& layer) {
  const int64_t N = layer.N, K = layer.K, ks = K / kSlices;
  Case c;
  c.flops = 2.0 * static_cast<double>(T) * static_cast<double>(N * K);
  c.warm_ms = kSteadyMs;
  const bf16* dy = b.normal(T * N);
  const bf16* x = b.normal(T * K);
  float* dw = b.array<float>(N * K);
  GemmWgradArgs a{dy, x, dw, N, K, 1, {}, N, K, N * K, K};
  if (layer.row_parallel) a.groups = kSlices, a.gk = a.lddw = ks, a.dw_group = N * ks;
  a.leaves.count = kSlices;
  for (int l = 0; l <= kSlices; ++l) a.leaves.begin[l] = T / kSlices * l;
  c.run = [a, &b](Stream s, int) { b.ops().gemm_wgrad(s, a); };
  c.verify = [=, &b] {
    std::string miss;
    for (int i = 0; i < 4 && miss.empty(); ++i) {
      const int64_t n = spread(i + 1, N), k = spread(i + 1, K);
      const int64_t at = k / a.gk * a.dw_group + n * a.lddw + k % a.gk;
      miss =
          check_element("dw[" + std::to_string(n) + "," + std::to_string(k) + "]",
                        element(b, dw, at, true), column(dy + n, T, N), column(x + k, T, K), false);
    }
    return miss;
  };
  time_beside(c,
              Matmul::make({.M = N,
                            .N = K,
                            .K = T,
                            .a_by_columns = true,
                            .b_by_columns = false,
                            .out_f32 = true,
                            .alignment = 256},
                           b.bytes(Matmul::kWorkspace)),
              [=](const Matmul& m, Stream s, int) { m.run(s, dy, x, dw); });
  return c;
}

}  // namespace

void add_gemm_cases(std::vector<NamedCase>& cases) {
  for (const int64_t T : {4096, 1024})
    for (const Layer& l : kLayers) {
      const std::string shape = text("T", T, l.N, l.K);
      cases.push_back({"gemm", shape, [=](Buffers& b) { return forward(b, T, l, 1); }});
      cases.push_back({"gemm_dgrad", shape, [=](Buffers& b) { return dgrad(b, T, l); }});
      cases.push_back({"gemm_wgrad", shape, [=](Buffers& b) { return wgrad(b, T, l); }});
    }
  for (const int ranks : {1, 2, 4, 8})
    for (const Layer& l : kLayers)
      for (const int64_t T : {1, 8, 16, 64}) {
        if (ranks > 1 && T != 8 && T != 64) continue;
        cases.push_back({"gemm_decode", text("T", T, l.N, l.K) + " 1/" + std::to_string(ranks),
                         [=](Buffers& b) { return forward(b, T, l, ranks); }});
      }
  const Layer gate_up = kLayers[2];
  for (const int64_t T : {1, 8, 16, 64})
    cases.push_back({"gemm_swiglu", text("T", T, gate_up.N, gate_up.K),
                     [=](Buffers& b) { return gated(b, T, gate_up); }});
}

}  // namespace rlk::bench
