// Ops whose every element stands alone, and those that move rows: swiglu, cast, adamw, tree_add,
// init_normal, init_uniform, embedding, gather/scatter; also sum_squares and sha256_pieces, whose
// tiles stand alone.

#include <algorithm>
#include <cstring>

#include "entries.h"
#include "parallel.h"
#include "rlk/base/sha256.h"
#include "simd.h"

namespace rlk::cpu {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that repay waking a thread

// body(i, n) for the elements i..i+n-1, n = 8 but for the last.
template <class Body>
void for_each_eight(int64_t n, const Body& body) {
  for_each_part((n + 7) / 8, kGrain / 8, [&](int64_t from, int64_t to) {
    for (int64_t i = from * 8; i < to * 8; i += 8)
      body(i, static_cast<int>(std::min<int64_t>(8, n - i)));
  });
}

// The first n (1..8) of eight values; the other lanes are zero.
inline F8 load_some(const float* p, int n) {
  return n == 8 ? load8(p) : _mm256_maskload_ps(p, first_lanes(n));
}
inline F8 load_some(const bf16* p, int n) {
  if (n == 8) return load8(p);
  bf16 padded[8] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(bf16));
  return load8(padded);
}
inline void store_some(float* p, F8 x, int n) {
  if (n == 8) return store8(p, x);
  _mm256_maskstore_ps(p, first_lanes(n), x);
}
inline void store_some(bf16* p, F8 x, int n) {
  if (n == 8) return store8(p, x);
  bf16 padded[8];
  store8(padded, x);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(bf16));
}

inline F8 sigmoid8(F8 x) {
  return div8(all8(1.f), add8(all8(1.f), exp8(neg8(x))));
}

}  // namespace

// silu(g) * up = (g * sigmoid(g)) * up.
void swiglu(Stream, const SwigluArgs& g) {
  require_multiple(g.fs, 8, "swiglu", "fs");
  for_each_part(g.T * g.slices, kGrain / 8 / (g.fs + 1) + 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const bf16* gate = g.gate_up + i * 2 * g.fs;
      for (int64_t f = 0; f < g.fs; f += 8) {
        const F8 x = load8(gate + f);
        store8(g.act + i * g.fs + f, mul8(mul8(x, sigmoid8(x)), load8(gate + g.fs + f)));
      }
    }
  });
}

// s = sigmoid(g): dgate = dact * up * s * (1 + g * (1 - s)); dup = dact * (g * s).
void swiglu_bwd(Stream, const SwigluBwdArgs& g) {
  require_multiple(g.fs, 8, "swiglu_bwd", "fs");
  for_each_part(g.T * g.slices, kGrain / 8 / (g.fs + 1) + 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const bf16* gate = g.gate_up + i * 2 * g.fs;
      bf16* out = g.d_gate_up + i * 2 * g.fs;
      for (int64_t f = 0; f < g.fs; f += 8) {
        const F8 x = load8(gate + f), up = load8(gate + g.fs + f),
                 dact = load8(g.dact + i * g.fs + f);
        const F8 s = sigmoid8(x);
        const F8 slope = mul8(s, fma8(x, sub8(all8(1.f), s), all8(1.f)));
        store8(out + f, mul8(mul8(dact, up), slope));
        store8(out + g.fs + f, mul8(dact, mul8(x, s)));
      }
    }
  });
}

void cast(Stream, const CastArgs& g) {
  for_each_eight(g.n, [&](int64_t i, int n) { store_some(g.y + i, load_some(g.x + i, n), n); });
}

void widen(Stream, const WidenArgs& g) {
  for_each_eight(
      g.n, [&](int64_t i, int n) { store_some(g.y + i, load_some(g.x + g.pieces.at(i), n), n); });
}

void adamw(Stream, const AdamWArgs& g) {
  const F8 beta1 = all8(g.beta1), beta2 = all8(g.beta2);
  const F8 rest1 = all8(1.f - g.beta1), rest2 = all8(1.f - g.beta2);
  for_each_eight(g.n, [&](int64_t i, int n) {
    const F8 grad = mul8(load_some(g.grad + i, n), all8(g.grad_scale));
    const F8 m = fma8(beta1, load_some(g.m + i, n), mul8(rest1, grad));
    const F8 v = fma8(beta2, load_some(g.v + i, n), mul8(rest2, mul8(grad, grad)));
    const F8 master = load_some(g.master + i, n);
    const F8 root = add8(_mm256_sqrt_ps(mul8(v, all8(g.bias2))), all8(g.eps));
    const F8 step = fma8(all8(g.weight_decay), master, div8(mul8(m, all8(g.bias1)), root));
    const F8 next = fma8(all8(-g.lr), step, master);
    store_some(g.m + i, m, n);
    store_some(g.v + i, v, n);
    store_some(g.master + i, next, n);
    store_some(g.weight + g.pieces.at(i), next, n);
  });
}

void tree_add(Stream, const TreeAddArgs& g) {
  require(is_tree_size(g.count), "tree_add", "count", g.count, "1, 2, 4 or 8");
  require(!g.accumulate || g.out_f32, "tree_add", "accumulate into bf16", g.accumulate, "off");
  for_each_eight(g.n, [&](int64_t i, int n) {
    F8 node[kSlices];
    const int64_t at = g.pieces.at(i);
    for (int p = 0; p < g.count; ++p) node[p] = load_some(g.part[p] + at, n);
    for (int width = g.count / 2; width > 0; width /= 2)
      for (int p = 0; p < width; ++p) node[p] = add8(node[2 * p], node[2 * p + 1]);
    if (!g.out_f32) return store_some(static_cast<bf16*>(g.out) + i, node[0], n);
    float* out = static_cast<float*>(g.out) + i;
    store_some(out, g.accumulate ? add8(load_some(out, n), node[0]) : node[0], n);
  });
}

// Element e of a tensor uses block e/4 of the tensor's key; words 0, 1 make elements 4b and 4b+1
// (cosine, sine), words 2, 3 the next two: z = sqrt(-2 log u) * cos or sin of 2 pi t/2^32, u =
// (first word + 0.5)/2^32, t = second word.
void init_normal(Stream, const InitNormalArgs& g) {
  const uint64_t key = mix64(g.seed ^ mix64(g.tensor));
  const int64_t first_quad = g.first / 4, last_quad = (g.first + g.n + 3) / 4;
  for_each_part((last_quad - first_quad + 3) / 4, 256, [&](int64_t from, int64_t to) {
    for (int64_t group = from; group < to;
         ++group) {  // 4 blocks: 8 pairs, a vector of radii and of angles
      alignas(32) uint32_t word[2][8];
      const int64_t quad = first_quad + group * 4;
      for (int b = 0; b < 4; ++b) {
        const uint64_t index = static_cast<uint64_t>(quad + b);
        const PhiloxBlock block =
            philox({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                   static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
        for (int w = 0; w < 4; ++w) word[w % 2][2 * b + w / 2] = block.word[w];
      }
      const F8 radius = _mm256_sqrt_ps(mul8(
          all8(2.f), minus_log_uniform(_mm256_load_si256(reinterpret_cast<const I8*>(word[0])))));
      F8 sin, cos;
      sin_cos_turns(_mm256_load_si256(reinterpret_cast<const I8*>(word[1])), sin, cos);
      alignas(32) float z[2][8];
      _mm256_store_ps(z[0], mul8(radius, cos));
      _mm256_store_ps(z[1], mul8(radius, sin));
      for (int e = 0; e < 16; ++e) {
        const int64_t i = quad * 4 + e - g.first;
        if (i >= 0 && i < g.n) g.w[i] = to_bf16(g.std * z[e % 2][e / 2]);
      }
    }
  });
}

void init_uniform(Stream, const InitUniformArgs& g) {
  for_each_part(g.rows, 1 + 4096 / (g.cols + 1), [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      const int64_t begin = g.first + r * g.ld;
      PhiloxBlock block{};
      for (int64_t i = begin; i < begin + g.cols; ++i) {
        if (i == begin || i % kHalfWords == 0)
          block = half_word_block(g.key, static_cast<uint64_t>(i / kHalfWords));
        g.w[r * g.cols + i - begin] = to_bf16(uniform_value(half_word(block, i), g.centre, g.step));
      }
    }
  });
}

void sum_squares(Stream, const SumSquaresArgs& g) {
  for_each_part((g.n + kNormTile - 1) / kNormTile, 1, [&](int64_t from, int64_t to) {
    for (int64_t tile = from; tile < to; ++tile) {
      // fp64, 16 lanes (element i in lane i mod 16), joined by the aligned tree over 4 x 4.
      __m256d lane[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                         _mm256_setzero_pd()};
      const int64_t end = std::min(g.n, (tile + 1) * kNormTile);
      for (int64_t i = tile * kNormTile; i < end; i += 8) {
        const F8 x = load_some(g.x + i, static_cast<int>(std::min<int64_t>(8, end - i)));
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        const int64_t j = i / 8 % 2 * 2;
        lane[j] = _mm256_fmadd_pd(low, low, lane[j]);
        lane[j + 1] = _mm256_fmadd_pd(high, high, lane[j + 1]);
      }
      const __m256d sum =
          _mm256_add_pd(_mm256_add_pd(lane[0], lane[1]), _mm256_add_pd(lane[2], lane[3]));
      alignas(32) double four[4];
      _mm256_store_pd(four, sum);
      g.out[tile] = (four[0] + four[1]) + (four[2] + four[3]);
    }
  });
}

void sha256_pieces(Stream, const Sha256Args& g) {
  require(g.piece > 0, "sha256_pieces", "piece", g.piece, "positive");
  require_multiple(g.piece, 16, "sha256_pieces", "piece");
  for_each_part(g.pieces, 1, [&](int64_t from, int64_t to) {
    const Sha256Range* const end = g.ranges + g.n_ranges;
    for (int64_t i = from; i < to; ++i) {
      // The last range that starts at or before piece i.
      const Sha256Range* range = std::upper_bound(g.ranges, end, i,
                                                  [](int64_t piece, const Sha256Range& r) {
                                                    return piece < r.first_piece;
                                                  }) -
                                 1;
      const int64_t at = (i - range->first_piece) * g.piece;
      const size_t bytes = static_cast<size_t>(std::min(g.piece, range->bytes - at));
      const Digest digest = sha256(static_cast<const unsigned char*>(range->data) + at, bytes);
      std::memcpy(g.digest + i * 32, digest.data(), digest.size());
    }
  });
}

// ---- Rows

void embedding(Stream, const EmbeddingArgs& g) {
  for (int64_t t = 0; t < g.T; ++t) {
    const int64_t id = g.ids[t];
    require(id >= 0 && id < kSlices * g.slice_rows, "embedding", "token id", id,
            "inside the padded vocabulary");
    const bf16* row = g.slice[id / g.slice_rows] + id % g.slice_rows * g.D;
    std::memcpy(g.y + t * g.D, row, static_cast<size_t>(g.D) * sizeof(bf16));
  }
}

void embedding_bwd(Stream, const EmbeddingBwdArgs& g) {
  require_multiple(g.D, 8, "embedding_bwd", "D");
  require_leaves(g.leaves, "embedding_bwd");
  for_each_part(g.rows, 4, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      float* out = g.dw + (g.row[i] - g.first_row) * g.D;
      for (int64_t d = 0; d < g.D; d += 8) {
        F8 node[kSlices];
        int64_t at = g.row_begin[i];
        for (int l = 0; l < g.leaves.count; ++l) {
          node[l] = zero8();
          for (; at < g.row_begin[i + 1] && g.tokens[at] < g.leaves.begin[l + 1]; ++at)
            node[l] = add8(node[l], load8(g.dx + g.tokens[at] * g.D + d));
        }
        for (int width = g.leaves.count / 2; width > 0; width /= 2)
          for (int p = 0; p < width; ++p) node[p] = add8(node[2 * p], node[2 * p + 1]);
        store8(out + d, node[0]);
      }
    }
  });
}

namespace {

enum class Direction { kGather, kScatter };

void move_rows(const RowMapArgs& g, Direction direction) {
  require_multiple(g.row_bytes, 4, direction == Direction::kGather ? "gather_rows" : "scatter_rows",
                   "row_bytes");
  const size_t bytes = static_cast<size_t>(g.row_bytes);
  const auto* x = static_cast<const unsigned char*>(g.x);
  auto* y = static_cast<unsigned char*>(g.y);
  for (int64_t i = 0; i < g.rows; ++i) {
    const int64_t at = g.index[i];
    if (direction == Direction::kScatter) {
      if (at >= 0) std::memcpy(y + at * g.row_bytes, x + i * g.row_bytes, bytes);
    } else if (at >= 0) {
      std::memcpy(y + i * g.row_bytes, x + at * g.row_bytes, bytes);
    } else {
      std::memset(y + i * g.row_bytes, 0, bytes);
    }
  }
}

}  // namespace

void gather_rows(Stream, const RowMapArgs& g) {
  move_rows(g, Direction::kGather);
}
void scatter_rows(Stream, const RowMapArgs& g) {
  move_rows(g, Direction::kScatter);
}

}  // namespace rlk::cpu
