// gemm, gemm_dgrad, gemm_wgrad: error against fp64, and every way of cutting the work that must not
// change a bit.

#include "ref/gemm.h"

#include <algorithm>

#include "device/gemm_cases.h"
#include "device/harness.h"
#include "device/leaves.h"

namespace rlk::test {
namespace {

class Gemm : public OpTest {
 protected:
  // A sum of K products, each exact in fp32: an fp32 chain is off by a few 2^-24 of the terms'
  // magnitude; the tensor core truncates what it adds, hence the larger figure.
  double sum_tolerance() const { return is_cuda() ? 2e-5 : 1e-6; }
};

// ---- gemm

// The layer's operands and its arguments for slices [first, first + slices).
struct Layer {
  GemmCase c;
  std::vector<bf16> x, w;  // w: column-parallel [N, K], row-parallel slice-major [8][N, K/8]

  explicit Layer(const GemmCase& which, uint64_t seed = 1) : c(which) {
    Random random(seed);
    x = random.bf16s(static_cast<size_t>(c.T * c.K));
    w = random.bf16s(static_cast<size_t>(c.N * c.K), 0.1f);
  }
  GemmArgs args(const bf16* x_at, const bf16* w_at, void* y, bool f32, int first = 0,
                int slices = 8) const {
    const int64_t ks = c.K / 8;
    const int64_t w_slice = c.row_parallel ? c.N * ks : ks;
    return {x_at + first * ks, w_at + first * w_slice,    y,   c.T, c.N, ks, slices, c.K,
            w_slice,           c.row_parallel ? ks : c.K, c.N, f32};
  }
};

template <class T>
std::vector<T> run_layer(const Ops& ops, const Layer& layer, int first = 0, int slices = 8) {
  const DeviceArray<bf16> x(ops, layer.x), w(ops, layer.w);
  DeviceArray<T> y(ops, static_cast<size_t>(layer.c.T * layer.c.N));
  ops.gemm(nullptr, layer.args(x.data(), w.data(), y.data(), sizeof(T) == 4, first, slices));
  return y.host();
}

TEST_P(Gemm, IsCloseToFp64) {
  RLK_NEEDS(gemm);
  for (const GemmCase& c : gemm_cases(is_cuda())) {
    const Layer layer(c);
    const ref::Sum want = ref::gemm(layer.args(layer.x.data(), layer.w.data(), nullptr, true));
    EXPECT_TRUE(close_to("gemm f32 " + c.text(), run_layer<float>(ops(), layer), want.value,
                         {sum_tolerance()}, want.magnitude));
    // One rounding to bf16 on top, relative to the value itself; the sum's own error where the
    // value is small.
    std::vector<double> yard(want.value.size());
    for (size_t i = 0; i < yard.size(); ++i)
      yard[i] = std::abs(want.value[i]) + want.magnitude[i] * sum_tolerance() / kBf16Half;
    EXPECT_TRUE(close_to("gemm bf16 " + c.text(), run_layer<bf16>(ops(), layer), want.value,
                         {kBf16Half}, yard));
  }
}

TEST_P(Gemm, Bf16OutputIsTheRoundedF32Output) {
  RLK_NEEDS(gemm);
  for (const GemmCase& c : gemm_cases(is_cuda())) {
    const Layer layer(c);
    const std::vector<float> f32 = run_layer<float>(ops(), layer);
    std::vector<bf16> rounded(f32.size());
    std::transform(f32.begin(), f32.end(), rounded.begin(), to_bf16);
    EXPECT_TRUE(same_bits(c.text(), run_layer<bf16>(ops(), layer), rounded));
  }
}

TEST_P(Gemm, RowAloneEqualsRowInBatch) {
  RLK_NEEDS(gemm);
  for (const GemmCase& c : gemm_cases(is_cuda())) {
    const Layer whole(c);
    const std::vector<float> y = run_layer<float>(ops(), whole);
    for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{5}, c.T / 2}) {
      for (const int64_t first : {int64_t{0}, (c.T - rows) / 2, c.T - rows}) {
        if (rows < 1 || rows > c.T) continue;
        Layer part = whole;
        part.c.T = rows;
        part.x = {whole.x.begin() + first * c.K, whole.x.begin() + (first + rows) * c.K};
        EXPECT_TRUE(
            same_bits(c.text() + " rows " + std::to_string(first) + "+" + std::to_string(rows),
                      run_layer<float>(ops(), part),
                      {y.begin() + first * c.N, y.begin() + (first + rows) * c.N}));
      }
    }
  }
}

TEST_P(Gemm, ColumnsAloneEqualColumnsTogether) {
  RLK_NEEDS(gemm);
  for (const GemmCase& c : gemm_cases(is_cuda())) {
    if (c.row_parallel || c.N % 64 != 0) continue;
    const Layer whole(c);
    const std::vector<float> y = run_layer<float>(ops(), whole);
    for (const int parts : {2, 4, 8}) {
      const int64_t width = c.N / parts;
      for (int p = 0; p < parts; ++p) {
        Layer part = whole;
        part.c.N = width;
        part.w = {whole.w.begin() + p * width * c.K, whole.w.begin() + (p + 1) * width * c.K};
        std::vector<float> want;
        for (int64_t t = 0; t < c.T; ++t)
          want.insert(want.end(), y.begin() + t * c.N + p * width,
                      y.begin() + t * c.N + (p + 1) * width);
        EXPECT_TRUE(
            same_bits(c.text() + " part " + std::to_string(p) + " of " + std::to_string(parts),
                      run_layer<float>(ops(), part), want));
      }
    }
  }
}

TEST_P(Gemm, RanksOfAnyGroupSizeJoinToTheSameBits) {
  RLK_NEEDS(gemm);
  RLK_NEEDS(tree_add);
  for (const GemmCase& c : gemm_cases(is_cuda())) {
    const Layer layer(c);
    const std::vector<float> whole = run_layer<float>(ops(), layer);
    for (const int ranks : {2, 4, 8}) {
      std::vector<std::vector<float>> parts;
      for (int r = 0; r < ranks; ++r)
        parts.push_back(run_layer<float>(ops(), layer, r * 8 / ranks, 8 / ranks));
      EXPECT_TRUE(
          same_bits(c.text() + " ranks " + std::to_string(ranks), join(ops(), parts), whole));
    }
  }
}

// The comparison above would catch a sum associated otherwise.
TEST_P(Gemm, AReassociatedTreeIsCaught) {
  RLK_NEEDS(gemm);
  const Layer layer(gemm_cases(false)[1]);
  const std::vector<float> whole = run_layer<float>(ops(), layer);
  std::vector<float> sequential(whole.size());
  for (int s = 0; s < 8; ++s) {
    const std::vector<float> part = run_layer<float>(ops(), layer, s, 1);
    for (size_t i = 0; i < part.size(); ++i) sequential[i] += part[i];
  }
  EXPECT_FALSE(same_bits("((0+1)+2)+..", sequential, whole));
}

// What the CPU promises in full: the very order of the chain, stated one operation at a time.
float chain_and_tree(const GemmArgs& g, int64_t t, int64_t n, bool backwards) {
  float node[8];
  for (int s = 0; s < 8; ++s) {
    node[s] = 0.f;
    for (int64_t i = 0; i < g.ks; ++i) {
      const int64_t k = backwards ? g.ks - 1 - i : i;
      node[s] = std::fma(to_float(g.x[t * g.ldx + s * g.ks + k]),
                         to_float(g.w[s * g.w_slice + n * g.ldw + k]), node[s]);
    }
  }
  return ((node[0] + node[1]) + (node[2] + node[3])) + ((node[4] + node[5]) + (node[6] + node[7]));
}

TEST_P(Gemm, CpuChainRunsForwardsAndABackwardsOneIsCaught) {
  if (is_cuda()) GTEST_SKIP() << "tensor cores have their own order";
  for (const GemmCase& c : gemm_cases(false)) {
    const Layer layer(c);
    const GemmArgs g = layer.args(layer.x.data(), layer.w.data(), nullptr, true);
    std::vector<float> forwards, backwards;
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t n = 0; n < c.N; ++n) {
        forwards.push_back(chain_and_tree(g, t, n, false));
        backwards.push_back(chain_and_tree(g, t, n, true));
      }
    const std::vector<float> y = run_layer<float>(ops(), layer);
    EXPECT_TRUE(same_bits(c.text(), y, forwards));
    EXPECT_FALSE(same_bits(c.text() + " backwards", y, backwards));
  }
}

// In one op or in two, whole tiles and cut ones, on both sides of the few-token path.
TEST_P(Gemm, SwigluInsideIsSwigluAfterwards) {
  RLK_NEEDS(gemm_swiglu);
  constexpr int64_t kK = 256;
  for (const int64_t fs : {8, 48, 152})
    for (const int slices : {1, 2, 8})
      for (const int64_t T : {1, 7, 16, 33, 64, 65}) {
        const GemmCase c{"gate_up", T, slices * 2 * fs, kK, false};
        const Layer layer(c, 11);
        const DeviceArray<bf16> x(ops(), layer.x), w(ops(), layer.w);
        const auto bytes = static_cast<size_t>(T * slices * fs);
        DeviceArray<bf16> two_steps(ops(), 2 * bytes), one_step(ops(), 2 * bytes),
            want(ops(), bytes), act(ops(), bytes);
        ops().gemm(nullptr, layer.args(x.data(), w.data(), two_steps.data(), false));
        ops().swiglu(nullptr, {two_steps.data(), want.data(), T, fs, slices});
        ops().gemm_swiglu(nullptr, {layer.args(x.data(), w.data(), one_step.data(), false),
                                    act.data(), fs, slices});
        EXPECT_TRUE(same_bits("gemm_swiglu T=" + std::to_string(T) + " fs=" + std::to_string(fs) +
                                  " slices=" + std::to_string(slices),
                              act.host(), want.host()));
      }
}

TEST_P(Gemm, NanAndInfinityStayInTheirRow) {
  RLK_NEEDS(gemm);
  Layer layer(gemm_cases(false)[0]);
  const std::vector<float> clean = run_layer<float>(ops(), layer);
  const auto [T, N, K] = std::tuple{layer.c.T, layer.c.N, layer.c.K};
  layer.x[static_cast<size_t>(3 * K + 5)] = {0x7fc0};
  layer.x[static_cast<size_t>(20 * K + 1)] = {0x7f80};
  const std::vector<float> y = run_layer<float>(ops(), layer);
  for (int64_t t = 0; t < T; ++t) {
    const std::vector<float> got(y.begin() + t * N, y.begin() + (t + 1) * N);
    if (t == 3)
      EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
    else if (t == 20)
      EXPECT_TRUE(std::none_of(got.begin(), got.end(), [](float v) { return std::isfinite(v); }));
    else
      EXPECT_TRUE(same_bits("row " + std::to_string(t), got,
                            {clean.begin() + t * N, clean.begin() + (t + 1) * N}));
  }
}

// ---- gemm_dgrad

struct DgradLayer {
  GemmCase c;
  std::vector<bf16> dy, w;

  explicit DgradLayer(const GemmCase& which) : c(which) {
    Random random(2);
    dy = random.bf16s(static_cast<size_t>(c.T * c.N));
    w = random.bf16s(static_cast<size_t>(c.N * c.K), 0.1f);
  }
  // Column-parallel: 8 slices of N/8 rows. Row-parallel: N in eighths, groups of K/8 input columns.
  GemmDgradArgs args(const bf16* dy_at, const bf16* w_at, void* dx, int first = 0,
                     int count = 8) const {
    const int64_t ns = c.N / 8, ks = c.K / 8;
    if (c.row_parallel)
      return {dy_at,      w_at + first * c.N * ks,
              dx,         c.T,
              ns,         ks,
              8,          count,
              c.N,        ns * ks,
              c.N * ks,   ks,
              count * ks, true};
    return {dy_at + first * ns,
            w_at + first * ns * c.K,
            dx,
            c.T,
            ns,
            c.K,
            count,
            1,
            c.N,
            ns * c.K,
            0,
            c.K,
            c.K,
            true};
  }
};

std::vector<GemmCase> dgrad_cases(bool with_big) {
  std::vector<GemmCase> cases;
  for (const GemmCase& c : gemm_cases(with_big))
    if (c.N % 128 == 0 && c.K % 64 == 0) cases.push_back(c);
  return cases;
}

std::vector<float> run_dgrad(const Ops& ops, const DgradLayer& layer, int first = 0,
                             int count = 8) {
  const DeviceArray<bf16> dy(ops, layer.dy), w(ops, layer.w);
  const int64_t width = layer.c.row_parallel ? layer.c.K / 8 * count : layer.c.K;
  DeviceArray<float> dx(ops, static_cast<size_t>(layer.c.T * width));
  ops.gemm_dgrad(nullptr, layer.args(dy.data(), w.data(), dx.data(), first, count));
  return dx.host();
}

TEST_P(Gemm, DgradIsCloseToFp64) {
  RLK_NEEDS(gemm_dgrad);
  for (const GemmCase& c : dgrad_cases(is_cuda())) {
    const DgradLayer layer(c);
    const ref::Sum want = ref::gemm_dgrad(layer.args(layer.dy.data(), layer.w.data(), nullptr));
    EXPECT_TRUE(close_to("dgrad f32 " + c.text(), run_dgrad(ops(), layer), want.value,
                         {sum_tolerance()}, want.magnitude));
  }
}

TEST_P(Gemm, DgradRowAloneEqualsRowInBatch) {
  RLK_NEEDS(gemm_dgrad);
  for (const GemmCase& c : dgrad_cases(is_cuda())) {
    const DgradLayer whole(c);
    const std::vector<float> dx = run_dgrad(ops(), whole);
    for (const int64_t t : {int64_t{0}, c.T / 2, c.T - 1}) {
      DgradLayer row = whole;
      row.c.T = 1;
      row.dy = {whole.dy.begin() + t * c.N, whole.dy.begin() + (t + 1) * c.N};
      EXPECT_TRUE(same_bits(c.text() + " row " + std::to_string(t), run_dgrad(ops(), row),
                            {dx.begin() + t * c.K, dx.begin() + (t + 1) * c.K}));
    }
  }
}

TEST_P(Gemm, DgradOfAnyGroupSizeGivesTheSameBits) {
  RLK_NEEDS(gemm_dgrad);
  RLK_NEEDS(tree_add);
  for (const GemmCase& c : dgrad_cases(is_cuda())) {
    const DgradLayer layer(c);
    const std::vector<float> whole = run_dgrad(ops(), layer);
    for (const int ranks : {2, 4, 8}) {
      std::vector<std::vector<float>> parts;
      for (int r = 0; r < ranks; ++r)
        parts.push_back(run_dgrad(ops(), layer, r * 8 / ranks, 8 / ranks));
      const std::string what = c.text() + " ranks " + std::to_string(ranks);
      if (!c.row_parallel) {
        EXPECT_TRUE(same_bits(what, join(ops(), parts), whole));
        continue;
      }
      const int64_t width = c.K / ranks;  // the ranks' columns lie side by side
      std::vector<float> columns(whole.size());
      for (int r = 0; r < ranks; ++r)
        for (int64_t t = 0; t < c.T; ++t)
          std::copy_n(parts[static_cast<size_t>(r)].begin() + t * width, width,
                      columns.begin() + t * c.K + r * width);
      EXPECT_TRUE(same_bits(what, columns, whole));
    }
  }
}

// ---- gemm_wgrad

struct WgradLayer {
  WgradCase c;
  Leaves leaves{};
  std::vector<bf16> dy, x;

  explicit WgradLayer(const WgradCase& which) : c(which) {
    leaves.count = c.leaves;
    for (int l = 0; l < c.leaves; ++l) leaves.begin[l + 1] = leaves.begin[l] + 64 * c.units[l];
    Random random(3);
    const int64_t T = leaves.begin[c.leaves];
    dy = random.bf16s(static_cast<size_t>(T * c.N));
    x = random.bf16s(static_cast<size_t>(T * c.K));
    for (int l = 0; l < c.leaves; ++l)  // a leaf's padding: up to 63 zero rows at its end
      for (int64_t t = std::max(leaves.begin[l], leaves.begin[l + 1] - 7 * l);
           t < leaves.begin[l + 1]; ++t)
        std::fill_n(dy.begin() + t * c.N, c.N, bf16{0});
  }
  GemmWgradArgs args(const bf16* dy_at, const bf16* x_at, float* dw) const {
    const int64_t gk = c.K / c.groups;
    return {dy_at, x_at, dw, c.N, gk, c.groups, leaves, c.N, c.K, c.N * gk, gk};
  }
};

std::vector<float> run_wgrad(const Ops& ops, const WgradLayer& layer) {
  const DeviceArray<bf16> dy(ops, layer.dy), x(ops, layer.x);
  DeviceArray<float> dw(ops, static_cast<size_t>(layer.c.N * layer.c.K));
  ops.gemm_wgrad(nullptr, layer.args(dy.data(), x.data(), dw.data()));
  return dw.host();
}

TEST_P(Gemm, WgradIsCloseToFp64) {
  RLK_NEEDS(gemm_wgrad);
  for (const WgradCase& c : wgrad_cases()) {
    const WgradLayer layer(c);
    const ref::Sum want = ref::gemm_wgrad(layer.args(layer.dy.data(), layer.x.data(), nullptr));
    EXPECT_TRUE(close_to("wgrad " + c.text(), run_wgrad(ops(), layer), want.value,
                         {sum_tolerance()}, want.magnitude));
  }
}

TEST_P(Gemm, WgradOfAnyGroupSizeJoinsToTheSameBits) {
  RLK_NEEDS(gemm_wgrad);
  RLK_NEEDS(tree_add);
  for (const WgradCase& c : wgrad_cases()) {
    const WgradLayer whole(c);
    const std::vector<float> dw = run_wgrad(ops(), whole);
    for (int ranks = 2; ranks <= c.leaves; ranks *= 2) {
      std::vector<std::vector<float>> parts;
      const int owned = c.leaves / ranks;
      for (int r = 0; r < ranks; ++r) {
        WgradLayer part = whole;
        part.leaves.count = owned;
        for (int l = 0; l <= owned; ++l) part.leaves.begin[l] = whole.leaves.begin[r * owned + l];
        parts.push_back(run_wgrad(ops(), part));
      }
      EXPECT_TRUE(same_bits(c.text() + " ranks " + std::to_string(ranks), join(ops(), parts), dw));
    }
  }
}

TEST_P(Gemm, WgradGroupsAloneEqualGroupsTogether) {
  RLK_NEEDS(gemm_wgrad);
  for (const WgradCase& c : wgrad_cases()) {
    if (c.groups == 1) continue;
    const WgradLayer whole(c);
    const std::vector<float> dw = run_wgrad(ops(), whole);
    const int64_t gk = c.K / c.groups;
    for (int group = 0; group < c.groups; ++group) {
      const DeviceArray<bf16> dy(ops(), whole.dy), x(ops(), whole.x);
      DeviceArray<float> one(ops(), static_cast<size_t>(c.N * gk));
      GemmWgradArgs args = whole.args(dy.data(), x.data() + group * gk, one.data());
      args.groups = 1;
      ops().gemm_wgrad(nullptr, args);
      EXPECT_TRUE(same_bits(c.text() + " group " + std::to_string(group), one.host(),
                            {dw.begin() + group * c.N * gk, dw.begin() + (group + 1) * c.N * gk}));
    }
  }
}

TEST_P(Gemm, WgradPaddingChangesNoBit) {
  RLK_NEEDS(gemm_wgrad);
  const WgradCase c{"padding", 64, 64, 1, 1, {1}};
  WgradCase longer = c;
  longer.units[0] = 3;
  const WgradLayer one(c);
  WgradLayer three(longer);
  std::fill(three.dy.begin(), three.dy.end(), bf16{0});
  std::fill(three.x.begin(), three.x.end(), bf16{0});
  std::copy(one.dy.begin(), one.dy.end(), three.dy.begin());
  std::copy(one.x.begin(), one.x.end(), three.x.begin());
  EXPECT_TRUE(same_bits("64 and 192 rows", run_wgrad(ops(), one), run_wgrad(ops(), three)));
}

// ---- Everywhere

TEST_P(Gemm, RunsAlike) {
  RLK_NEEDS(gemm);
  for (const GemmCase& c : gemm_cases(is_cuda()))
    EXPECT_TRUE(
        same_bits(c.text(), run_layer<float>(ops(), Layer(c)), run_layer<float>(ops(), Layer(c))));
}

TEST_P(Gemm, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  for (const GemmCase& c : gemm_cases(false)) {
    const std::vector<float> one = run_layer<float>(cpu_ops(1), Layer(c));
    for (const int threads : {2, 5})
      EXPECT_TRUE(same_bits(c.text() + " threads " + std::to_string(threads),
                            run_layer<float>(cpu_ops(threads), Layer(c)), one));
  }
  for (const WgradCase& c : wgrad_cases()) {
    const std::vector<float> one = run_wgrad(cpu_ops(1), WgradLayer(c));
    for (const int threads : {2, 5})
      EXPECT_TRUE(same_bits(c.text() + " threads " + std::to_string(threads),
                            run_wgrad(cpu_ops(threads), WgradLayer(c)), one));
  }
  cpu_ops(1);
}

TEST_P(Gemm, RefusesShapesOutsideItsContract) {
  RLK_NEEDS(gemm);
  const Layer layer(gemm_cases(false)[0]);
  const DeviceArray<bf16> x(ops(), layer.x), w(ops(), layer.w);
  DeviceArray<float> y(ops(), static_cast<size_t>(layer.c.T * layer.c.N));
  const auto refused = [&](auto&& change) {
    GemmArgs args = layer.args(x.data(), w.data(), y.data(), true);
    change(args);
    EXPECT_THROW(ops().gemm(nullptr, args), Error);
  };
  refused([](GemmArgs& g) { g.ks = 12; });
  refused([](GemmArgs& g) { g.N = 12; });
  refused([](GemmArgs& g) { g.slices = 3; });
  refused([](GemmArgs& g) { g.slices = 16; });
  refused([](GemmArgs& g) { g.ldx = 129; });
  refused([](GemmArgs& g) { g.ldw = 4; });
  refused([](GemmArgs& g) { g.ldy = 2050; });
}

RLK_FOR_EACH_BACKEND(Gemm);

}  // namespace
}  // namespace rlk::test
