#pragma once
// Naive fp64 statements of the three GEMMs (contracts: rlk/device/ops.h), on host memory.
// `magnitude` is the sum of the terms' magnitudes, the yardstick of a sum's error.

#include <cmath>
#include <vector>

#include "rlk/device/ops.h"

namespace rlk::ref {

struct Sum {
  std::vector<double> value, magnitude;
  explicit Sum(size_t n) : value(n), magnitude(n) {}
  void add(int64_t i, double a, double b) {
    value[static_cast<size_t>(i)] += a * b;
    magnitude[static_cast<size_t>(i)] += std::abs(a * b);
  }
};

inline Sum gemm(const GemmArgs& g) {  // [T, N]
  Sum y(static_cast<size_t>(g.T * g.N));
  for (int64_t t = 0; t < g.T; ++t)
    for (int64_t n = 0; n < g.N; ++n)
      for (int s = 0; s < g.slices; ++s)
        for (int64_t k = 0; k < g.ks; ++k)
          y.add(t * g.N + n, to_float(g.x[t * g.ldx + s * g.ks + k]),
                to_float(g.w[s * g.w_slice + n * g.ldw + k]));
  return y;
}

inline Sum gemm_dgrad(const GemmDgradArgs& g) {  // [T, groups * gk]
  const int64_t width = g.groups * g.gk;
  Sum dx(static_cast<size_t>(g.T * width));
  for (int64_t t = 0; t < g.T; ++t)
    for (int s = 0; s < g.slices; ++s)
      for (int64_t n = 0; n < g.ns; ++n)
        for (int group = 0; group < g.groups; ++group)
          for (int64_t k = 0; k < g.gk; ++k)
            dx.add(t * width + group * g.gk + k, to_float(g.dy[t * g.lddy + s * g.ns + n]),
                   to_float(g.w[s * g.w_slice + group * g.w_group + n * g.ldw + k]));
  return dx;
}

inline Sum gemm_wgrad(const GemmWgradArgs& g) {  // [groups, N, gk]
  Sum dw(static_cast<size_t>(g.groups * g.N * g.gk));
  for (int64_t t = g.leaves.begin[0]; t < g.leaves.begin[g.leaves.count]; ++t)
    for (int group = 0; group < g.groups; ++group)
      for (int64_t n = 0; n < g.N; ++n)
        for (int64_t k = 0; k < g.gk; ++k)
          dw.add((group * g.N + n) * g.gk + k, to_float(g.dy[t * g.lddy + n]),
                 to_float(g.x[t * g.ldx + group * g.gk + k]));
  return dw;
}

}  // namespace rlk::ref
