#include "tree.h"

#include <cstring>

#include "rlk/base/error.h"

namespace rlk {
namespace {

inline void store(float* out, float x) {
  *out = x;
}
inline void store(bf16* out, float x) {
  *out = to_bf16(x);
}

template <class Out>
void tree1(const float* const* p, Out* __restrict out, int64_t n) {
  const float* a = p[0];
  for (int64_t i = 0; i < n; ++i) store(out + i, a[i]);
}

template <class Out>
void tree2(const float* const* p, Out* __restrict out, int64_t n) {
  const float *a = p[0], *b = p[1];
  for (int64_t i = 0; i < n; ++i) store(out + i, a[i] + b[i]);
}

template <class Out>
void tree4(const float* const* p, Out* __restrict out, int64_t n) {
  const float *a = p[0], *b = p[1], *c = p[2], *d = p[3];
  for (int64_t i = 0; i < n; ++i) store(out + i, (a[i] + b[i]) + (c[i] + d[i]));
}

template <class Out>
void tree8(const float* const* p, Out* __restrict out, int64_t n) {
  const float *a = p[0], *b = p[1], *c = p[2], *d = p[3];
  const float *e = p[4], *f = p[5], *g = p[6], *h = p[7];
  for (int64_t i = 0; i < n; ++i)
    store(out + i, ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i])));
}

template <class Out>
void tree(const float* const* part, int count, Out* out, int64_t n) {
  RLK_CHECK(count == 1 || count == 2 || count == 4 || count == 8, count);
  if (count == 1) tree1(part, out, n);
  if (count == 2) tree2(part, out, n);
  if (count == 4) tree4(part, out, n);
  if (count == 8) tree8(part, out, n);
}

}  // namespace

void tree_f32(const float* const* part, int count, float* out, int64_t n) {
  if (count == 1 && part[0] == out) return;
  tree(part, count, out, n);
}

void tree_bf16(const float* const* part, int count, bf16* out, int64_t n) {
  tree(part, count, out, n);
}

}  // namespace rlk
