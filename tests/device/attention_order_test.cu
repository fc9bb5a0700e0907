// The attention rule (R4), stated a second time with another instruction: every element of the CUDA
// op equals, bit for bit, chains of mma.sync.m16n8k16 and a softmax that one thread a row writes
// key by key. Rules that differ in one figure are caught, so the equality means something.

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "device/harness.h"

namespace rlk::test {
namespace {

struct Rule {
  int tile_keys = 128, split_tiles = 8;
  float threshold = 8.0f;
};

struct Shape {
  int H, KH, Dh, n;  // one sequence of n tokens
  float c;
};

__device__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

constexpr int kMaxTile = 256, kMaxDh = 128;

// What one row carries: its current split, then the splits merged so far.
struct Row {
  float m, l[8], M, L, f, a, b;
};

// One warp for 16 rows of one head. o and lse as the op writes them.
__global__ void __launch_bounds__(32)
    state_rule(const uint16_t* q, const uint16_t* k, const uint16_t* v, uint16_t* o, float* lse,
               Shape x, Rule rule) {
  __shared__ float s[16][kMaxTile];
  __shared__ __nv_bfloat16 p[16][kMaxTile];
  __shared__ Row row[16];
  const int lane = threadIdx.x, g = lane / 4, c2 = 2 * (lane % 4);
  const int first = blockIdx.x * 16, head = blockIdx.y, kv = head / (x.H / x.KH);
  const auto q_row = [&](int r) {
    return q + (static_cast<int64_t>(min(first + r, x.n - 1)) * x.H + head) * x.Dh;
  };
  const auto kv_row = [&](const uint16_t* from, int key) {
    return from + (static_cast<int64_t>(min(key, x.n - 1)) * x.KH + kv) * x.Dh;
  };
  const auto pair = [](const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); };
  float acc[kMaxDh / 8][4], sum[kMaxDh / 8][4];
  const int tiles = (min(first + 15, x.n - 1)) / rule.tile_keys + 1;
  for (int j = 0; j < tiles; ++j) {
    const int key0 = j * rule.tile_keys;
    const bool starts = j % rule.split_tiles == 0;
    const bool ends = j % rule.split_tiles == rule.split_tiles - 1 || j == tiles - 1;
    for (int b = 0; b < rule.tile_keys; b += 8) {
      float d[4] = {0, 0, 0, 0};
      for (int e = 0; e < x.Dh; e += 16) {
        const uint32_t a[4] = {pair(q_row(g) + e + c2), pair(q_row(g + 8) + e + c2),
                               pair(q_row(g) + e + 8 + c2), pair(q_row(g + 8) + e + 8 + c2)};
        const uint16_t* key = kv_row(k, key0 + b + g) + e + c2;
        mma(d, a, pair(key), pair(key + 8));
      }
      for (int i = 0; i < 4; ++i) s[g + 8 * (i / 2)][b + c2 + i % 2] = d[i];
    }
    __syncwarp();
    if (lane < 16) {
      Row& r = row[lane];
      const int visible = min(rule.tile_keys, first + lane - key0 + 1);
      if (starts) {
        r.m = -INFINITY;
        for (float& l : r.l) l = 0;
      }
      float top = -INFINITY;
      for (int i = 0; i < visible; ++i) top = fmaxf(top, s[lane][i]);
      const float t = __fmul_rn(top, x.c);
      r.f = 1;
      if (t > r.m + rule.threshold) {
        r.f = ex2(r.m - t);
        r.m = t;
      }
      for (float& l : r.l) l = __fmul_rn(l, r.f);
      for (int i = 0; i < rule.tile_keys; ++i) {
        const float w = i < visible ? ex2(__fmaf_rn(s[lane][i], x.c, -r.m)) : 0.0f;
        if (i < visible) r.l[i % 8] = __fadd_rn(r.l[i % 8], w);
        p[lane][i] = __float2bfloat16_rn(w);
      }
      if (ends) {
        const float l = __fadd_rn(__fadd_rn(__fadd_rn(r.l[0], r.l[1]), __fadd_rn(r.l[2], r.l[3])),
                                  __fadd_rn(__fadd_rn(r.l[4], r.l[5]), __fadd_rn(r.l[6], r.l[7])));
        if (j < rule.split_tiles) {
          r.M = r.m, r.L = l, r.a = 0, r.b = 1;
        } else {
          const float top_m = fmaxf(r.M, r.m);
          r.a = ex2(r.M - top_m), r.b = ex2(r.m - top_m), r.M = top_m;
          r.L = __fmaf_rn(l, r.b, __fmul_rn(r.L, r.a));
        }
      }
    }
    __syncwarp();
    for (int b = 0; b < x.Dh / 8; ++b) {
      for (int i = 0; i < 4; ++i)
        acc[b][i] = starts ? 0.0f : __fmul_rn(acc[b][i], row[g + 8 * (i / 2)].f);
      for (int e = 0; e < rule.tile_keys; e += 16) {
        const auto w = [&](int r, int at) { return *reinterpret_cast<const uint32_t*>(&p[r][at]); };
        const uint32_t a[4] = {w(g, e + c2), w(g + 8, e + c2), w(g, e + 8 + c2),
                               w(g + 8, e + 8 + c2)};
        const auto values = [&](int key) {
          return static_cast<uint32_t>(kv_row(v, key)[b * 8 + g]) |
                 static_cast<uint32_t>(kv_row(v, key + 1)[b * 8 + g]) << 16;
        };
        mma(acc[b], a, values(key0 + e + c2), values(key0 + e + 8 + c2));
      }
      if (!ends) continue;
      for (int i = 0; i < 4; ++i) {
        const Row& r = row[g + 8 * (i / 2)];
        sum[b][i] =
            j < rule.split_tiles ? acc[b][i] : __fmaf_rn(acc[b][i], r.b, __fmul_rn(sum[b][i], r.a));
      }
    }
    __syncwarp();
  }
  for (int b = 0; b < x.Dh / 8; ++b)
    for (int i = 0; i < 4; ++i) {
      const int r = g + 8 * (i / 2);
      if (first + r >= x.n) continue;
      const float y = __fmul_rn(sum[b][i], __frcp_rn(row[r].L));
      o[(static_cast<int64_t>(first + r) * x.H + head) * x.Dh + b * 8 + c2 + i % 2] =
          __bfloat16_as_ushort(__float2bfloat16_rn(y));
    }
  if (lane < 16 && first + lane < x.n) {
    float log;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(row[lane].L));
    lse[static_cast<int64_t>(first + lane) * x.H + head] = __fadd_rn(row[lane].M, log);
  }
}

struct Result {
  std::vector<bf16> o;
  std::vector<float> lse;
};

class AttentionOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ops_ = backend_ops("cuda", &why);
    if (ops_ != nullptr) return;
    if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
    GTEST_SKIP() << why;
  }
  const Ops& ops() const { return *ops_; }

 private:
  const Ops* ops_ = nullptr;
};

// One sequence, and the two statements of its attention.
class Case {
 public:
  Case(const Ops& ops, Shape shape, float peak)
      : ops_(ops),
        x_(shape),
        q_(ops, random(shape.n, shape.H, peak, 1)),
        k_(ops, random(shape.n + 16, shape.KH, 1.f, 2)),
        v_(ops, random(shape.n + 16, shape.KH, 1.f, 3)) {
    x_.c = static_cast<float>(static_cast<double>(scale()) * 1.4426950408889634);
  }
  Result op() {
    const int row = x_.KH * x_.Dh, pages = (x_.n + 15) / 16;
    std::vector<int32_t> table(static_cast<size_t>(pages));
    for (int i = 0; i < pages; ++i)
      table[static_cast<size_t>(i)] = 16 * i;  // plain rows as pages of 16
    const DeviceArray<int32_t> table_device(ops_, table);
    const DeviceArray<AttentionSegment> segment(ops_, {{0, 0, x_.n, 0}});
    DeviceArray<bf16> o(ops_, q_.size());
    DeviceArray<float> lse(ops_, static_cast<size_t>(x_.n * x_.H));
    AttentionArgs a{};
    a.q = q_.data();
    a.cache.k[0] = k_.data();
    a.cache.v[0] = v_.data();
    a.cache.page_table = table_device.data();
    a.cache.max_pages = pages;
    a.cache.page_size = 16;
    a.cache.page_stride = a.cache.token_stride = row;
    a.cache.head_stride = x_.Dh;
    a.segments = segment.data();
    a.n_segments = 1;
    a.max_len = a.max_context = x_.n;
    a.o = o.data();
    a.lse = lse.data();
    a.T = x_.n;
    a.H = x_.H;
    a.KH = x_.KH;
    a.Dh = x_.Dh;
    a.scale = scale();
    DeviceArray<char> workspace(ops_, ops_.attention_workspace(a));
    a.workspace = workspace.data();
    ops_.attention(nullptr, a);
    return {o.host(), lse.host()};
  }
  Result stated(const Rule& rule) {
    DeviceArray<bf16> o(ops_, q_.size());
    DeviceArray<float> lse(ops_, static_cast<size_t>(x_.n * x_.H));
    const auto bits = [](bf16* p) { return reinterpret_cast<uint16_t*>(p); };
    const dim3 grid(static_cast<unsigned>((x_.n + 15) / 16), static_cast<unsigned>(x_.H));
    state_rule<<<grid, 32>>>(bits(q_.data()), bits(k_.data()), bits(v_.data()), bits(o.data()),
                             lse.data(), x_, rule);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    ops_.synchronize(nullptr);
    return {o.host(), lse.host()};
  }

 private:
  float scale() const { return 1.f / std::sqrt(static_cast<float>(x_.Dh)); }
  // K and V have 16 rows more than the sequence: a page is read in full.
  std::vector<bf16> random(int rows, int heads, float std, uint64_t seed) const {
    Random r(seed);
    return r.bf16s(static_cast<size_t>(rows * heads * x_.Dh), std);
  }

  const Ops& ops_;
  Shape x_;
  DeviceArray<bf16> q_, k_, v_;
};

TEST_F(AttentionOrder, EveryElementFollowsTheRule) {
  for (const Shape& x :
       {Shape{4, 1, 128, 2300, 0}, Shape{3, 3, 128, 1025, 0}, Shape{8, 2, 64, 2100, 0}})
    for (float peak : {1.f, 4.f}) {
      Case c(ops(), x, peak);
      const Result op = c.op(), want = c.stated({});
      const std::string what = "H " + std::to_string(x.H) + " Dh " + std::to_string(x.Dh) +
                               " peak " + std::to_string(peak);
      EXPECT_TRUE(same_bits(what + " o", op.o, want.o));
      EXPECT_TRUE(same_bits(what + " lse", op.lse, want.lse));
    }
}

TEST_F(AttentionOrder, AnotherRuleIsCaught) {
  Case c(ops(), {4, 1, 128, 2300, 0}, 4.f);
  const Result op = c.op();
  for (const Rule& other :
       {Rule{64, 16, 8.f}, Rule{128, 4, 8.f}, Rule{128, 16, 8.f}, Rule{128, 8, 0.f}})
    EXPECT_FALSE(same_bits("o", op.o, c.stated(other).o))
        << other.tile_keys << " " << other.split_tiles;
}

}  // namespace
}  // namespace rlk::test
