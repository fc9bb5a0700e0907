#pragma once
// What the tests of row ops share: pieces of arrays, and the epsilon of their norms.

#include <vector>

#include "device/harness.h"
#include "ref/rows.h"

namespace rlk::test {

inline constexpr float kEps = 1e-6f;

using ref::Vector;

template <class T>
Vector slice(const std::vector<T>& x, int64_t first, int64_t n) {
  Vector out;
  for (int64_t i = first; i < first + n; ++i) out.push_back(value(x[static_cast<size_t>(i)]));
  return out;
}
inline void append(Vector& to, const Vector& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
std::vector<T> part(const std::vector<T>& x, int64_t first, int64_t n) {
  return {x.begin() + first, x.begin() + first + n};
}

}  // namespace rlk::test
