// swiglu, embedding and their backward passes; gather and scatter.

#include "device/leaves.h"
#include "device/rows_cases.h"

namespace rlk::test {
namespace {

class Rows : public OpTest {};

// ---- swiglu

struct SwigluCase {
  int64_t T, fs;
  int slices;
  std::string text() const {
    return "T=" + std::to_string(T) + " fs=" + std::to_string(fs) +
           " slices=" + std::to_string(slices);
  }
};
std::vector<SwigluCase> swiglu_cases() {
  return {{33, 48, 8}, {1, 48, 1}, {7, 1536, 2}, {3, 8, 4}};
}

std::vector<bf16> run_swiglu(const Ops& ops, const SwigluCase& c, const std::vector<bf16>& x) {
  const DeviceArray<bf16> gate_up(ops, x);
  DeviceArray<bf16> act(ops, x.size() / 2);
  ops.swiglu(nullptr, {gate_up.data(), act.data(), c.T, c.fs, c.slices});
  return act.host();
}

std::vector<bf16> run_swiglu_bwd(const Ops& ops, const SwigluCase& c, const std::vector<bf16>& x,
                                 const std::vector<bf16>& dy, bool in_place) {
  DeviceArray<bf16> gate_up(ops, x), out(ops, x.size());
  const DeviceArray<bf16> dact(ops, dy);
  ops.swiglu_bwd(nullptr, {gate_up.data(), dact.data(), in_place ? gate_up.data() : out.data(), c.T,
                           c.fs, c.slices});
  return in_place ? gate_up.host() : out.host();
}

TEST_P(Rows, SwigluAndItsBackwardAreCloseToFp64) {
  RLK_NEEDS(swiglu);
  RLK_NEEDS(swiglu_bwd);
  for (const SwigluCase& c : swiglu_cases()) {
    Random random(23);
    const auto n = static_cast<size_t>(c.T * c.slices * c.fs);
    const std::vector<bf16> x = random.bf16s(2 * n, 4.f), dact = random.bf16s(n);
    Vector act(n), dx(2 * n);
    for (size_t i = 0; i < n; ++i) {
      const size_t fs = static_cast<size_t>(c.fs), gate_at = i / fs * 2 * fs + i % fs;
      const double gate = value(x[gate_at]), up = value(x[gate_at + fs]), d = value(dact[i]);
      act[i] = ref::silu(gate) * up;
      dx[gate_at] = d * up * ref::silu_slope(gate);
      dx[gate_at + fs] = d * ref::silu(gate);
    }
    EXPECT_TRUE(close_to("swiglu " + c.text(), run_swiglu(ops(), c, x), act, {kBf16Half * 1.001}));
    // The slope crosses zero near -1.28, where its terms cancel: hence the floor.
    const std::vector<bf16> got = run_swiglu_bwd(ops(), c, x, dact, false);
    EXPECT_TRUE(close_to("swiglu_bwd " + c.text(), got, dx, {kBf16Half * 1.001, 1e-3}));
    EXPECT_TRUE(
        same_bits("swiglu_bwd in place " + c.text(), run_swiglu_bwd(ops(), c, x, dact, true), got));
  }
}

TEST_P(Rows, SwigluOfExtremesIsWhatTheFormulaSays) {
  RLK_NEEDS(swiglu);
  const SwigluCase c{1, 8, 1};
  std::vector<bf16> x;
  for (const float gate : {-1e30f, -100.f, -0.f, 0.f, 100.f, 1e30f, INFINITY, NAN})
    x.push_back(to_bf16(gate));
  for (int i = 0; i < 8; ++i) x.push_back(to_bf16(2.f));
  const std::vector<bf16> y = run_swiglu(ops(), c, x);
  EXPECT_EQ(value(y[0]), 0.0);
  EXPECT_LE(std::abs(value(y[1])), 1e-35);
  EXPECT_EQ(value(y[2]), 0.0);
  EXPECT_EQ(value(y[3]), 0.0);
  EXPECT_EQ(value(y[4]), 200.0);
  EXPECT_EQ(value(y[5]), value(to_bf16(2e30f)));
  EXPECT_EQ(value(y[6]), INFINITY);
  EXPECT_TRUE(std::isnan(value(y[7])));
}

// ---- embedding

TEST_P(Rows, EmbeddingSelectsTheOwnersRow) {
  RLK_NEEDS(embedding);
  for (const int64_t D : {8, 128, 4096}) {
    Random random(29);
    const int64_t slice_rows = 16, T = 70;
    std::vector<std::vector<bf16>> table;
    std::vector<DeviceArray<bf16>> on_device;
    EmbeddingArgs args{};
    for (int v = 0; v < kSlices; ++v) {
      table.push_back(random.bf16s(static_cast<size_t>(slice_rows * D)));
      on_device.emplace_back(ops(), table.back());
      args.slice[v] = on_device.back().data();
    }
    std::vector<int32_t> ids{0, 127};
    while (ids.size() < static_cast<size_t>(T))
      ids.push_back(static_cast<int32_t>(random.below(8 * slice_rows)));
    const DeviceArray<int32_t> ids_on_device(ops(), ids);
    DeviceArray<bf16> y(ops(), static_cast<size_t>(T * D));
    args.slice_rows = slice_rows, args.ids = ids_on_device.data(), args.y = y.data(), args.T = T,
    args.D = D;
    ops().embedding(nullptr, args);
    std::vector<bf16> want;
    for (const int32_t id : ids) {
      const auto row = part(table[static_cast<size_t>(id / slice_rows)], id % slice_rows * D, D);
      want.insert(want.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits("D=" + std::to_string(D), y.host(), want));
  }
}

TEST_P(Rows, EmbeddingBwdSumsEachRowsTokensByLeaves) {
  RLK_NEEDS(embedding_bwd);
  for (const Leaves& leaves : leaf_cases()) {
    const int64_t T = leaves.begin[leaves.count], D = 136;
    Random random(31);
    const std::vector<float> dx = random.floats(static_cast<size_t>(T * D));
    std::vector<std::vector<int32_t>> tokens_of(12);
    for (int64_t t = 0; t < T; ++t)  // some rows busy, some with no token at all
      if (const int64_t r = random.below(14); r < 11)
        tokens_of[static_cast<size_t>(r < 9 ? r % 4 : r)].push_back(static_cast<int32_t>(t));
    std::vector<int32_t> row, begin{0}, tokens;
    for (size_t r = 0; r < tokens_of.size(); ++r) {
      if (tokens_of[r].empty()) continue;
      row.push_back(static_cast<int32_t>(r) + 100);
      tokens.insert(tokens.end(), tokens_of[r].begin(), tokens_of[r].end());
      begin.push_back(static_cast<int32_t>(tokens.size()));
    }
    std::vector<float> want(12 * static_cast<size_t>(D),
                            7.f);  // rows that are not named keep what they hold
    const DeviceArray<float> dx_on_device(ops(), dx);
    DeviceArray<float> dw(ops(), want);
    const DeviceArray<int32_t> row_d(ops(), row), begin_d(ops(), begin), tokens_d(ops(), tokens);
    ops().embedding_bwd(nullptr,
                        {dx_on_device.data(), dw.data(), D, 100, static_cast<int64_t>(row.size()),
                         row_d.data(), begin_d.data(), tokens_d.data(), leaves});
    for (size_t i = 0; i < row.size(); ++i)
      for (int64_t d = 0; d < D; ++d) {
        std::vector<float> node(static_cast<size_t>(leaves.count), 0.f);
        for (int32_t j = begin[i]; j < begin[i + 1]; ++j) {
          const int32_t t = tokens[static_cast<size_t>(j)];
          int l = 0;
          while (t >= leaves.begin[l + 1]) ++l;
          node[static_cast<size_t>(l)] += dx[static_cast<size_t>(t * D + d)];
        }
        for (size_t n = node.size() / 2; n > 0; n /= 2)
          for (size_t k = 0; k < n; ++k) node[k] = node[2 * k] + node[2 * k + 1];
        want[static_cast<size_t>((row[i] - 100) * D + d)] = node[0];
      }
    // Plain fp32 additions in a stated order: the same bits on every backend.
    EXPECT_TRUE(same_bits(text(leaves), dw.host(), want));
  }
}

// ---- gather, scatter

TEST_P(Rows, GatherAndScatterMoveWholeRows) {
  RLK_NEEDS(gather_rows);
  RLK_NEEDS(scatter_rows);
  for (const int64_t words : {1, 3, 4, 64, 1000}) {
    Random random(37);
    const int64_t rows = 40;
    std::vector<uint32_t> x;
    for (int64_t i = 0; i < rows * words; ++i)
      x.push_back(static_cast<uint32_t>(random.below(int64_t{1} << 32)));
    std::vector<int32_t> index;
    for (int32_t i = 0; i < rows; ++i)
      index.push_back(i % 7 == 3 ? -1 : (i * 11 + 5) % static_cast<int32_t>(rows));
    const DeviceArray<uint32_t> x_d(ops(), x);
    const DeviceArray<int32_t> index_d(ops(), index);
    DeviceArray<uint32_t> gathered(ops(), x.size()), scattered(ops(), x.size());
    ops().gather_rows(nullptr, {x_d.data(), gathered.data(), index_d.data(), rows, words * 4});
    ops().scatter_rows(nullptr, {x_d.data(), scattered.data(), index_d.data(), rows, words * 4});
    std::vector<uint32_t> want_gathered(x.size()), want_scattered(x.size(), 0xffffffffu);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t w = 0; w < words; ++w) {
        const int64_t at = index[static_cast<size_t>(i)];
        if (at < 0) continue;
        want_gathered[static_cast<size_t>(i * words + w)] = x[static_cast<size_t>(at * words + w)];
        want_scattered[static_cast<size_t>(at * words + w)] = x[static_cast<size_t>(i * words + w)];
      }
    EXPECT_TRUE(same_bits("gather", gathered.host(), want_gathered));
    EXPECT_TRUE(same_bits("scatter", scattered.host(), want_scattered));
  }
}

TEST_P(Rows, RefusesShapesOutsideItsContract) {
  RLK_NEEDS(swiglu);
  RLK_NEEDS(gather_rows);
  DeviceArray<bf16> x(ops(), 128), y(ops(), 128);
  EXPECT_THROW(ops().swiglu(nullptr, {x.data(), y.data(), 1, 12, 1}), Error);
  EXPECT_THROW(ops().gather_rows(nullptr, {x.data(), y.data(), nullptr, 1, 6}), Error);
}

RLK_FOR_EACH_BACKEND(Rows);

}  // namespace
}  // namespace rlk::test
