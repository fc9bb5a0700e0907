// decode_advance: what a step's tokens make of the rows, against the statement of it in plain code.

#include <array>

#include "device/harness.h"

namespace rlk::test {
namespace {

class Decode : public OpTest {};

constexpr int64_t kVocab = 1000, kStride = 5;
const std::vector<int32_t> kStop = {7, 900};

// The state of T rows on the host.
struct Rows {
  std::vector<int32_t> token, limit, count, ids, position, seq;
  std::vector<float> logp;
  std::vector<Drawn> drawn;
  std::vector<AttentionSegment> segments;
  std::vector<SampleKey> keys;

  explicit Rows(int32_t T, uint64_t seed = 3) {
    Random random(seed);
    for (int32_t r = 0; r < T; ++r) {
      token.push_back(static_cast<int32_t>(random.below(kVocab)));
      if (r % 4 == 1) token.back() = kStop[static_cast<size_t>(r / 4 % 2)];
      if (r % 16 == 3) token.back() = r % 32 == 3 ? 0x7fffffff : -1;  // of a NaN among the logits
      logp.push_back(random.normal());
      limit.push_back(1 + static_cast<int32_t>(random.below(kStride)));
      count.push_back(static_cast<int32_t>(random.below(limit.back())));
      ids.push_back(r);
      position.push_back(100 + r);
      seq.push_back(r % 6 == 5 ? -1 : r / 2);
      segments.push_back({r / 2, 100 + r, r % 6 == 5 ? 0 : 1, r});
      keys.push_back({99, static_cast<uint32_t>(r), 1, static_cast<uint32_t>(101 + r)});
      for (int64_t i = 0; i < kStride; ++i) drawn.push_back({-1, 0.f});
    }
  }
  int64_t T() const { return static_cast<int64_t>(ids.size()); }
};

Rows advanced(Rows x) {
  for (size_t r = 0; r < x.ids.size(); ++r) {
    if (x.seq[r] < 0) continue;
    const int32_t token = x.token[r];
    x.drawn[r * kStride + static_cast<size_t>(x.count[r])] = {token, x.logp[r]};
    x.count[r] += 1;
    if (token == kStop[0] || token == kStop[1] || token < 0 || token >= kVocab ||
        x.count[r] == x.limit[r]) {
      x.seq[r] = -1;
      x.segments[r].len = 0;
    } else {
      x.ids[r] = token;
      x.position[r] += 1;
      x.segments[r].position += 1;
      x.keys[r].position += 1;
    }
  }
  return x;
}

Rows run(const Ops& ops, Rows x, int steps) {
  const DeviceArray<int32_t> token(ops, x.token), limit(ops, x.limit), stop(ops, kStop);
  const DeviceArray<float> logp(ops, x.logp);
  DeviceArray<int32_t> count(ops, x.count), ids(ops, x.ids), position(ops, x.position),
      seq(ops, x.seq);
  DeviceArray<Drawn> drawn(ops, x.drawn);
  DeviceArray<AttentionSegment> segments(ops, x.segments);
  DeviceArray<SampleKey> keys(ops, x.keys);
  for (int i = 0; i < steps; ++i)
    ops.decode_advance(nullptr, {.token = token.data(),
                                 .logp = logp.data(),
                                 .stop = stop.data(),
                                 .n_stop = 2,
                                 .vocab = kVocab,
                                 .limit = limit.data(),
                                 .count = count.data(),
                                 .drawn = drawn.data(),
                                 .drawn_stride = kStride,
                                 .ids = ids.data(),
                                 .position = position.data(),
                                 .seq = seq.data(),
                                 .segments = segments.data(),
                                 .keys = keys.data(),
                                 .T = x.T()});
  x.count = count.host(), x.ids = ids.host(), x.position = position.host(), x.seq = seq.host();
  x.drawn = drawn.host(), x.segments = segments.host(), x.keys = keys.host();
  return x;
}

void expect_same(const std::string& what, const Rows& got, const Rows& want) {
  EXPECT_TRUE(same_bits(what + " count", got.count, want.count));
  EXPECT_TRUE(same_bits(what + " ids", got.ids, want.ids));
  EXPECT_TRUE(same_bits(what + " position", got.position, want.position));
  EXPECT_TRUE(same_bits(what + " seq", got.seq, want.seq));
  EXPECT_TRUE(same_bits(what + " drawn", got.drawn, want.drawn));
  EXPECT_TRUE(same_bits(what + " segments", got.segments, want.segments));
  EXPECT_TRUE(same_bits(what + " keys", got.keys, want.keys));
}

TEST_P(Decode, RowsGoOnOrGoIdle) {
  RLK_NEEDS(decode_advance);
  for (const int32_t T : {1, 2, 63, 64, 65, 300}) {
    Rows want(T);
    for (int steps = 1; steps <= 6; ++steps) {
      want = advanced(want);
      expect_same("T=" + std::to_string(T) + " steps " + std::to_string(steps),
                  run(ops(), Rows(T), steps), want);
    }
    for (const int32_t seq : want.seq) EXPECT_LT(seq, 0) << "every row has reached its limit";
  }
}

RLK_FOR_EACH_BACKEND(Decode);

}  // namespace
}  // namespace rlk::test
