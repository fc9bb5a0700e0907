#pragma once
// Naive fp64 attention and its gradients, one sequence and one query head at a time, causal. Host
// memory.

#include <cmath>
#include <vector>

namespace rlk::ref {

struct Matrix {  // [rows, columns] fp64
  int64_t rows, columns;
  std::vector<double> x;
  Matrix(int64_t r, int64_t c) : rows(r), columns(c), x(static_cast<size_t>(r * c)) {}
  double& at(int64_t r, int64_t c) { return x[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return x[static_cast<size_t>(r * columns + c)]; }
};

// Row q, key k: weight of key k for the query at position q; zero for k > q. lse in exp2 units, as
// AttentionArgs.
inline Matrix attention_weights(const Matrix& q, const Matrix& k, double scale,
                                std::vector<double>* lse) {
  Matrix p(q.rows, k.rows);
  for (int64_t i = 0; i < q.rows; ++i) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; ++j) {
      double s = 0;
      for (int64_t d = 0; d < q.columns; ++d) s += q.at(i, d) * k.at(j, d);
      p.at(i, j) = s * scale;
      max = std::max(max, s * scale);
    }
    for (int64_t j = 0; j <= i; ++j) sum += p.at(i, j) = std::exp(p.at(i, j) - max);
    for (int64_t j = 0; j <= i; ++j) p.at(i, j) /= sum;
    if (lse) lse->push_back((max + std::log(sum)) / std::log(2.0));
  }
  return p;
}

inline Matrix weighted_values(const Matrix& p, const Matrix& v) {
  Matrix o(p.rows, v.columns);
  for (int64_t i = 0; i < p.rows; ++i)
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t d = 0; d < v.columns; ++d) o.at(i, d) += p.at(i, j) * v.at(j, d);
  return o;
}

// Gradients of sum(o * d_o), and for each element the sum of its terms' magnitudes (the yardstick
// of rounding).
struct AttentionGradients {
  Matrix dq, dk, dv, dq_size, dk_size, dv_size;
};

inline AttentionGradients attention_gradients(const Matrix& q, const Matrix& k, const Matrix& v,
                                              const Matrix& d_o, double scale) {
  const Matrix p = attention_weights(q, k, scale, nullptr), o = weighted_values(p, v);
  const Matrix zero(q.rows, q.columns);
  AttentionGradients g{zero, zero, zero, zero, zero, zero};
  for (int64_t i = 0; i < q.rows; ++i) {
    double delta = 0, delta_size = 0;
    for (int64_t d = 0; d < q.columns; ++d) {
      delta += o.at(i, d) * d_o.at(i, d);
      delta_size += std::abs(o.at(i, d) * d_o.at(i, d));
    }
    for (int64_t j = 0; j <= i; ++j) {
      double dp = 0, dp_size = 0;
      for (int64_t d = 0; d < q.columns; ++d) {
        dp += d_o.at(i, d) * v.at(j, d);
        dp_size += std::abs(d_o.at(i, d) * v.at(j, d));
      }
      const double ds = p.at(i, j) * (dp - delta) * scale,
                   size = p.at(i, j) * (dp_size + delta_size) * scale;
      for (int64_t d = 0; d < q.columns; ++d) {
        g.dq.at(i, d) += ds * k.at(j, d), g.dq_size.at(i, d) += size * std::abs(k.at(j, d));
        g.dk.at(j, d) += ds * q.at(i, d), g.dk_size.at(j, d) += size * std::abs(q.at(i, d));
        g.dv.at(j, d) += p.at(i, j) * d_o.at(i, d);
        g.dv_size.at(j, d) += p.at(i, j) * std::abs(d_o.at(i, d));
      }
    }
  }
  return g;
}

}  // namespace rlk::ref
