#pragma once
// Naive fp64 statements of the row ops and their gradients. Host memory.

#include <cmath>
#include <vector>

namespace rlk::ref {

using Vector = std::vector<double>;

inline double reciprocal_rms(const Vector& x, double eps) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

inline Vector rms_norm(const Vector& x, const Vector& w, double eps) {
  const double r = reciprocal_rms(x, eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * r * w[i];
  return y;
}

// Gradients of sum(y * dy) by x and, added, by w.
inline Vector rms_norm_bwd(const Vector& x, const Vector& w, const Vector& dy, double eps,
                           Vector* dw) {
  const double r = reciprocal_rms(x, eps), n = static_cast<double>(x.size());
  double dot = 0;
  for (size_t i = 0; i < x.size(); ++i) dot += dy[i] * w[i] * x[i] * r;
  Vector dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    dx[i] = r * (dy[i] * w[i] - x[i] * r * dot / n);
    if (dw) (*dw)[i] += dy[i] * x[i] * r;
  }
  return dx;
}

// Rotates the halves (i, i + n/2) by the angles; `direction` -1 is the transpose.
inline Vector rotate(const Vector& x, const Vector& cos, const Vector& sin, int direction = 1) {
  const size_t half = x.size() / 2;
  Vector y(x.size());
  for (size_t i = 0; i < half; ++i) {
    y[i] = x[i] * cos[i] - direction * x[half + i] * sin[i];
    y[half + i] = x[half + i] * cos[i] + direction * x[i] * sin[i];
  }
  return y;
}

inline double silu(double g) {
  return g / (1 + std::exp(-g));
}
inline double silu_slope(double g) {
  const double s = 1 / (1 + std::exp(-g));
  return s * (1 + g * (1 - s));
}

}  // namespace rlk::ref
