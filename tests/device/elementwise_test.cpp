// adamw, tree_add, cast, sum_squares, init_normal, sha256_pieces.

#include <gtest/gtest-spi.h>

#include <algorithm>

#include "device/harness.h"
#include "rlk/base/sha256.h"

namespace rlk::test {
namespace {

class Elementwise : public OpTest {};

const std::vector<int64_t> kSizes = {1, 7, 8, 9, 255, 4096, 65536 + 13};

// ---- tree_add

float tree(const std::vector<std::vector<float>>& parts, size_t i) {
  std::vector<float> node;
  for (const auto& part : parts) node.push_back(part[i]);
  for (size_t n = node.size() / 2; n > 0; n /= 2)
    for (size_t k = 0; k < n; ++k) node[k] = node[2 * k] + node[2 * k + 1];
  return node[0];
}

TEST_P(Elementwise, TreeAddIsTheAlignedTree) {
  RLK_NEEDS(tree_add);
  for (const int64_t n : kSizes)
    for (const int count : {1, 2, 4, 8}) {
      Random random(51);
      std::vector<std::vector<float>> parts;
      std::vector<DeviceArray<float>> on_device;
      TreeAddArgs args{};
      for (int p = 0; p < count; ++p) {
        parts.push_back(random.floats(static_cast<size_t>(n)));
        on_device.emplace_back(ops(), parts.back());
        args.part[p] = on_device.back().data();
      }
      const std::vector<float> before = random.floats(static_cast<size_t>(n));
      std::vector<float> sum, added;
      std::vector<bf16> rounded;
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        sum.push_back(tree(parts, i));
        added.push_back(before[i] + sum.back());
        rounded.push_back(to_bf16(sum.back()));
      }
      const std::string what = "n=" + std::to_string(n) + " count=" + std::to_string(count);
      DeviceArray<float> f32(ops(), static_cast<size_t>(n)), accumulated(ops(), before);
      DeviceArray<bf16> half(ops(), static_cast<size_t>(n));
      args.count = count, args.n = n;
      args.out = f32.data(), args.out_f32 = true;
      ops().tree_add(nullptr, args);
      args.out = accumulated.data(), args.accumulate = true;
      ops().tree_add(nullptr, args);
      args.out = half.data(), args.out_f32 = false, args.accumulate = false;
      ops().tree_add(nullptr, args);
      EXPECT_TRUE(same_bits("f32 " + what, f32.host(), sum));
      EXPECT_TRUE(same_bits("+= " + what, accumulated.host(), added));
      EXPECT_TRUE(same_bits("bf16 " + what, half.host(), rounded));
    }
}

// A rank's pieces among those of others: every op that takes them reads and writes its own alone.
TEST_P(Elementwise, PiecesAmongOthersEqualTheWholeArray) {
  RLK_NEEDS(tree_add);
  RLK_NEEDS(adamw);
  RLK_NEEDS(widen);
  constexpr int64_t kStride = 80, kOwn = 150;  // pieces of 64, the last one shorter
  const Pieces pieces{.log2_size = 6, .stride = kStride};
  Random random(71);
  const std::vector<float> part = random.floats(3 * kStride), start = random.floats(kOwn);
  std::vector<bf16> weights(part.size());
  std::transform(part.begin(), part.end(), weights.begin(), to_bf16);
  std::vector<float> own, wide;
  for (int64_t i = 0; i < kOwn; ++i) {
    own.push_back(part[static_cast<size_t>(i / 64 * kStride + i % 64)]);
    wide.push_back(to_float(to_bf16(own.back())));
  }
  const DeviceArray<float> source(ops(), part);
  DeviceArray<float> sum(ops(), kOwn), widened(ops(), kOwn);
  ops().tree_add(nullptr, {.part = {source.data()},
                           .count = 1,
                           .out = sum.data(),
                           .n = kOwn,
                           .out_f32 = true,
                           .accumulate = false,
                           .pieces = pieces});
  EXPECT_TRUE(same_bits("tree_add", sum.host(), own));
  DeviceArray<bf16> weight(ops(), weights);
  ops().widen(nullptr, {weight.data(), widened.data(), kOwn, pieces});
  EXPECT_TRUE(same_bits("widen", widened.host(), wide));

  DeviceArray<float> master(ops(), start), m(ops(), std::vector<float>(kOwn)),
      v(ops(), std::vector<float>(kOwn));
  ops().adamw(nullptr, {.master = master.data(),
                        .m = m.data(),
                        .v = v.data(),
                        .grad = sum.data(),
                        .weight = weight.data(),
                        .n = kOwn,
                        .lr = 0.1f,
                        .beta1 = 0.9f,
                        .beta2 = 0.98f,
                        .eps = 1e-8f,
                        .weight_decay = 0,
                        .bias1 = 10,
                        .bias2 = 50,
                        .grad_scale = 1,
                        .pieces = pieces});
  const std::vector<float> stepped = master.host();
  for (int64_t i = 0; i < kOwn; ++i)
    weights[static_cast<size_t>(pieces.at(i))] = to_bf16(stepped[static_cast<size_t>(i)]);
  EXPECT_TRUE(same_bits("adamw", weight.host(), weights));  // what lies between is left alone
}

TEST_P(Elementwise, CopyRowsMovesItsRunsAlone) {
  const std::vector<float> from = Random(73).floats(100);
  std::vector<float> want(100, -1.0f);
  for (const size_t row : {0u, 1u, 2u})
    std::copy_n(from.begin() + static_cast<int64_t>(row * 30), 20,
                want.begin() + static_cast<int64_t>(row * 30));
  const DeviceArray<float> source(ops(), from);
  DeviceArray<float> to(ops(), std::vector<float>(100, -1.0f));
  ops().copy_rows(nullptr, to.data(), source.data(), 20 * 4, 30 * 4, 3);
  EXPECT_TRUE(same_bits("copy_rows", to.host(), want));
}

TEST_P(Elementwise, TreeAddRefusesOtherCounts) {
  RLK_NEEDS(tree_add);
  DeviceArray<float> out(ops(), 8);
  TreeAddArgs args{};
  args.out = out.data(), args.n = 8, args.out_f32 = true;
  for (const int count : {0, 3, 16}) {
    args.count = count;
    EXPECT_THROW(ops().tree_add(nullptr, args), Error) << count;
  }
}

// ---- cast

TEST_P(Elementwise, CastRoundsToNearestEven) {
  RLK_NEEDS(cast);
  for (const int64_t n : kSizes) {
    Random random(53);
    std::vector<float> x = random.floats(static_cast<size_t>(n));
    const std::vector<uint32_t> special = {0x3f808000, 0x3f818000, 0x80000000, 0x7f800000,
                                           0xff800000, 0x7f7fffff, 1};
    for (size_t i = 0; i < std::min(x.size(), special.size()); ++i)
      x[i] = __builtin_bit_cast(float, special[i]);
    const DeviceArray<float> on_device(ops(), x);
    DeviceArray<bf16> y(ops(), x.size());
    ops().cast(nullptr, {on_device.data(), y.data(), n});
    std::vector<bf16> want(x.size());
    std::transform(x.begin(), x.end(), want.begin(), to_bf16);
    EXPECT_TRUE(same_bits("n=" + std::to_string(n), y.host(), want));
  }
}

// ---- adamw

TEST_P(Elementwise, AdamWIsCloseToFp64OverTwoSteps) {
  RLK_NEEDS(adamw);
  for (const int64_t n : kSizes) {
    Random random(57);
    const auto size = static_cast<size_t>(n);
    const std::vector<float> start = random.floats(size), grad = random.floats(size, 0.01f);
    std::vector<double> master = values(start), m(size), v(size);
    DeviceArray<float> master_d(ops(), start), m_d(ops(), std::vector<float>(size)),
        v_d(ops(), std::vector<float>(size));
    const DeviceArray<float> grad_d(ops(), grad);
    DeviceArray<bf16> weight(ops(), size);
    AdamWArgs args{master_d.data(),
                   m_d.data(),
                   v_d.data(),
                   grad_d.data(),
                   weight.data(),
                   n,
                   1e-3f,
                   0.9f,
                   0.98f,
                   1e-8f,
                   0.1f,
                   0,
                   0,
                   0.5f};
    for (int step = 1; step <= 2; ++step) {
      args.bias1 = static_cast<float>(1 / (1 - std::pow(0.9, step)));
      args.bias2 = static_cast<float>(1 / (1 - std::pow(0.98, step)));
      ops().adamw(nullptr, args);
      for (size_t i = 0; i < size; ++i) {
        const double g = static_cast<double>(grad[i]) * 0.5;
        m[i] = static_cast<double>(args.beta1) * m[i] + (1 - static_cast<double>(args.beta1)) * g;
        v[i] =
            static_cast<double>(args.beta2) * v[i] + (1 - static_cast<double>(args.beta2)) * g * g;
        const double step_size = m[i] * static_cast<double>(args.bias1) /
                                 (std::sqrt(v[i] * static_cast<double>(args.bias2)) + 1e-8);
        master[i] -= 1e-3 * (step_size + static_cast<double>(args.weight_decay) * master[i]);
      }
    }
    const std::string what = "n=" + std::to_string(n);
    const std::vector<float> got = master_d.host();
    EXPECT_TRUE(close_to("adamw m " + what, m_d.host(), m, {3e-7}));
    EXPECT_TRUE(close_to("adamw v " + what, v_d.host(), v, {1e-6}));  // 1 - 0.98f is 6e-7 off 0.02
    EXPECT_TRUE(
        close_to("adamw master " + what, got, master, {1.5e-7, 1.0}));  // two roundings at about 1
    std::vector<bf16> rounded(size);
    std::transform(got.begin(), got.end(), rounded.begin(), to_bf16);
    EXPECT_TRUE(same_bits("adamw weight " + what, weight.host(), rounded));
  }
}

TEST_P(Elementwise, AdamWElementStandsAlone) {
  RLK_NEEDS(adamw);
  Random random(59);
  const std::vector<float> start = random.floats(1000), grad = random.floats(1000),
                           moment = random.floats(1000);
  std::vector<float> square(1000);
  for (size_t i = 0; i < 1000; ++i) square[i] = moment[i] * moment[i];
  const auto run = [&](size_t first, size_t n) {
    const auto cut = [&](const std::vector<float>& x) {
      return std::vector<float>(x.begin() + static_cast<int64_t>(first),
                                x.begin() + static_cast<int64_t>(first + n));
    };
    DeviceArray<float> master(ops(), cut(start)), m(ops(), cut(moment)), v(ops(), cut(square));
    const DeviceArray<float> g(ops(), cut(grad));
    DeviceArray<bf16> weight(ops(), n);
    ops().adamw(nullptr, {master.data(), m.data(), v.data(), g.data(), weight.data(),
                          static_cast<int64_t>(n), 1e-3f, 0.9f, 0.98f, 1e-8f, 0.1f, 2.f, 3.f, 1.f});
    return master.host();
  };
  const std::vector<float> whole = run(0, 1000);
  for (const size_t first : {0u, 8u, 500u})
    for (const size_t n : {1u, 5u, 200u})
      EXPECT_TRUE(same_bits("from " + std::to_string(first) + " of " + std::to_string(n),
                            run(first, n),
                            {whole.begin() + static_cast<int64_t>(first),
                             whole.begin() + static_cast<int64_t>(first + n)}));
}

// ---- sum_squares

TEST_P(Elementwise, SumSquaresOfATileIsCloseAndDependsOnTheTileAlone) {
  RLK_NEEDS(sum_squares);
  for (const int64_t n : {int64_t{1}, int64_t{13}, kNormTile, kNormTile + 1, 3 * kNormTile + 777}) {
    Random random(61);
    const std::vector<float> x = random.floats(static_cast<size_t>(n));
    const int64_t tiles = (n + kNormTile - 1) / kNormTile;
    const DeviceArray<float> on_device(ops(), x);
    DeviceArray<double> out(ops(), static_cast<size_t>(tiles));
    ops().sum_squares(nullptr, {on_device.data(), n, out.data()});
    const std::vector<double> got = out.host();
    for (int64_t i = 0; i < tiles; ++i) {
      const std::vector<float> tile(x.begin() + i * kNormTile,
                                    x.begin() + std::min(n, (i + 1) * kNormTile));
      long double want = 0;
      for (const float v : tile) want += static_cast<long double>(v) * v;
      EXPECT_NEAR(got[static_cast<size_t>(i)] / static_cast<double>(want), 1, 1e-13);
      const DeviceArray<float> alone(ops(), tile);
      DeviceArray<double> one(ops(), 1);
      ops().sum_squares(nullptr, {alone.data(), static_cast<int64_t>(tile.size()), one.data()});
      EXPECT_TRUE(same_bits<double>("tile " + std::to_string(i), one.host(),
                                    {got[static_cast<size_t>(i)]}));
    }
  }
}

// ---- init_normal

std::vector<bf16> run_init(const Ops& ops, int64_t n, int64_t first, uint64_t seed, uint64_t tensor,
                           float std) {
  DeviceArray<bf16> w(ops, static_cast<size_t>(n));
  ops.init_normal(nullptr, {w.data(), n, first, seed, tensor, std});
  return w.host();
}

TEST_P(Elementwise, InitNormalPiecesEqualTheWholeAndSeedsDiffer) {
  RLK_NEEDS(init_normal);
  const std::vector<bf16> whole = run_init(ops(), 5000, 0, 1, 2, 0.02f);
  for (const int64_t first : {0, 1, 2, 3, 4, 17, 4095})
    for (const int64_t n : {1, 2, 15, 16, 900})
      EXPECT_TRUE(same_bits("from " + std::to_string(first), run_init(ops(), n, first, 1, 2, 0.02f),
                            {whole.begin() + first, whole.begin() + first + n}));
  EXPECT_FALSE(same_bits("another seed", run_init(ops(), 5000, 0, 3, 2, 0.02f), whole));
  EXPECT_FALSE(same_bits("another tensor", run_init(ops(), 5000, 0, 1, 3, 0.02f), whole));
}

TEST_P(Elementwise, InitNormalIsBoxMullerOfTheStatedWords) {
  RLK_NEEDS(init_normal);
  const int64_t n = 4096, first = (int64_t{1} << 34) + 8;  // past 32 bits of blocks
  const std::vector<bf16> got = run_init(ops(), n, first, 7, 9, 1.f);
  const uint64_t key = mix64(7 ^ mix64(9));
  std::vector<double> want;
  for (int64_t e = first; e < first + n; ++e) {
    const auto quad = static_cast<uint64_t>(e / 4);
    const PhiloxBlock b =
        philox({{static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 0, 0}},
               static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
    const double u = (b.word[e % 4 / 2 * 2] + 0.5) * 0x1p-32,
                 turn = b.word[e % 4 / 2 * 2 + 1] * 0x1p-32;
    const double angle = 2 * 3.14159265358979323846 * turn;
    want.push_back(std::sqrt(-2 * std::log(u)) * (e % 2 ? std::sin(angle) : std::cos(angle)));
  }
  EXPECT_TRUE(close_to("init_normal", got, want,
                       {kBf16Half * 1.001, 1e-3}));  // one rounding; sin and cos near zero
  double mean = 0, square = 0;
  for (const double z : want) mean += z, square += z * z;
  EXPECT_NEAR(mean / static_cast<double>(n), 0, 0.08);  // 5 standard errors
  EXPECT_NEAR(square / static_cast<double>(n), 1, 0.12);
}

// ---- init_uniform

TEST_P(Elementwise, InitUniformRectanglesEqualTheStatedWords) {
  RLK_NEEDS(init_uniform);
  constexpr uint64_t kKey = 0x123456789abcdefull;
  constexpr float kStep = 0.0692820323f / 65536.0f;
  const int64_t far = (int64_t{1} << 36) + 5;  // past 32 bits of blocks
  for (const auto& [rows, cols, first, ld] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 0, 1},
        {3, 8, 0, 8},
        {5, 7, 3, 21},
        {130, 17, 11, 40},
        {2, 513, far, 1027},
        {700, 1, 9, 3}}) {
    DeviceArray<bf16> w(ops(), static_cast<size_t>(rows * cols));
    ops().init_uniform(nullptr, {w.data(), rows, cols, first, ld, kKey, 1.0f, kStep});
    std::vector<bf16> want;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = first + r * ld + c;
        const auto block = static_cast<uint64_t>(i / 8);
        const PhiloxBlock b =
            philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}},
                   static_cast<uint32_t>(kKey), static_cast<uint32_t>(kKey >> 32));
        const uint32_t word = b.word[i % 8 / 2] >> (i % 2 ? 16 : 0) & 0xFFFF;
        const float scaled = (static_cast<float>(word) - 32767.5f) * kStep;
        want.push_back(to_bf16(1.0f + scaled));
      }
    EXPECT_TRUE(same_bits(std::to_string(rows) + " x " + std::to_string(cols), w.host(), want));
  }
}

// ---- sha256_pieces

TEST_P(Elementwise, Sha256OfEveryPieceOfEveryRange) {
  RLK_NEEDS(sha256_pieces);
  const int64_t piece = 256;
  std::vector<std::vector<uint8_t>> data;
  std::vector<DeviceArray<uint8_t>> on_device;
  std::vector<Sha256Range> ranges;
  std::vector<uint8_t> want;
  int64_t pieces = 0;
  Random random(67);
  for (const int64_t bytes : {1, 55, 56, 63, 64, 255, 256, 257, 1024, 5000}) {
    data.emplace_back();
    for (int64_t i = 0; i < bytes; ++i)
      data.back().push_back(static_cast<uint8_t>(random.below(256)));
    on_device.emplace_back(ops(), data.back());
    ranges.push_back({on_device.back().data(), bytes, pieces});
    for (int64_t at = 0; at < bytes; at += piece, ++pieces) {
      const Digest digest =
          sha256(data.back().data() + at, static_cast<size_t>(std::min(piece, bytes - at)));
      want.insert(want.end(), digest.begin(), digest.end());
    }
  }
  const DeviceArray<Sha256Range> ranges_d(ops(), ranges);
  DeviceArray<uint8_t> digest(ops(), want.size());
  ops().sha256_pieces(nullptr, {ranges_d.data(), static_cast<int32_t>(ranges.size()), pieces, piece,
                                digest.data()});
  EXPECT_TRUE(same_bits("digests", digest.host(), want));
}

TEST_P(Elementwise, ThreadCountChangesNoBit) {
  if (is_cuda()) GTEST_SKIP() << "a CPU matter";
  const std::vector<bf16> one = run_init(cpu_ops(1), 100001, 3, 1, 2, 1.f);
  for (const int threads : {2, 5})
    EXPECT_TRUE(same_bits("threads " + std::to_string(threads),
                          run_init(cpu_ops(threads), 100001, 3, 1, 2, 1.f), one));
  cpu_ops(1);
}

TEST(CpuOps, RefusesLessThanOneThread) {
  EXPECT_THROW(cpu_ops(0), Error);
}

// The harness itself: each of its checks fails when it should.
TEST(Harness, ChecksFailWhenTheyShould) {
  const Ops& ops = cpu_ops(1);
  EXPECT_FALSE(same_bits<float>("-0 and +0", {0.f}, {-0.f}));
  EXPECT_FALSE(same_bits<float>("sizes", {0.f}, {0.f, 0.f}));
  EXPECT_FALSE(close_to("nan", std::vector<float>{NAN}, {1.0}, {1e-3}));
  EXPECT_FALSE(close_to("off", std::vector<float>{1.01f}, {1.0}, {1e-3}));
  EXPECT_TRUE(close_to("near", std::vector<float>{1.0001f}, {1.0}, {1e-3}));
  const DeviceArray<float> past(ops, 3), before(ops, 3);
  past.data()[3] = 1.f;
  before.data()[-1] = 1.f;
  EXPECT_NONFATAL_FAILURE((void)past.host(), "written 0 bytes past the array of 12");
  EXPECT_NONFATAL_FAILURE((void)before.host(), "bytes before the array");
  const std::vector<float> poison = DeviceArray<float>(ops, 1).host();
  EXPECT_TRUE(std::isnan(poison[0]));
}

RLK_FOR_EACH_BACKEND(Elementwise);

}  // namespace
}  // namespace rlk::test
