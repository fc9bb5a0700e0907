#include "rlk/train/super_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "rlk/base/philox.h"
#include "train/tree_sum.h"

namespace rlk {
namespace {

std::vector<Sample> samples_of(const std::vector<int>& lengths, int prompt_len) {
  std::vector<Sample> samples;
  for (int n : lengths) {
    Sample s;
    s.prompt = static_cast<int64_t>(samples.size());
    s.prompt_len = prompt_len;
    s.tokens.assign(n, 7);
    samples.push_back(std::move(s));
  }
  return samples;
}

const std::vector<int> kLengths = {2, 17, 18, 129, 3, 1000};

TEST(SuperBatch, EveryInputIsOnExactlyOneRank) {
  for (int cp : {1, 2, 4, 8}) {
    const auto samples = samples_of(kLengths, 1);
    for (const SuperBatch& b : make_super_batches(samples, 0, 6, cp, 65536)) {
      std::set<std::pair<int, int>> seen;
      for (const RankRows& r : b.ranks) {
        ASSERT_EQ(static_cast<int64_t>(r.seq.size()), b.T);
        for (int64_t t = 0; t < b.T; ++t) {
          if (r.seq[t] < 0) continue;
          EXPECT_TRUE(seen.insert({r.seq[t], r.position[t]}).second);
        }
      }
      size_t inputs = 0;
      for (int n : kLengths) inputs += n - 1;  // the last token of a sequence is no input
      EXPECT_EQ(seen.size(), inputs);
    }
  }
}

// The leaves of all ranks, one after the other, are the same eight token lists whatever the CP
// size.
TEST(SuperBatch, LeavesDoNotDependOnCp) {
  auto leaves = [](int cp) {
    std::vector<std::vector<std::pair<int, int>>> all;
    const auto samples = samples_of(kLengths, 1);
    const auto batches = make_super_batches(samples, 0, 6, cp, 65536);
    for (const RankRows& r : batches[0].ranks)
      for (int leaf = 0; leaf < r.leaves.count; ++leaf) {
        auto& list = all.emplace_back();
        for (int64_t t = r.leaves.begin[leaf]; t < r.leaves.begin[leaf + 1]; ++t)
          if (r.seq[t] >= 0) list.push_back({r.seq[t], r.position[t]});
      }
    return all;
  };
  const auto one = leaves(1);
  ASSERT_EQ(one.size(), 8u);
  for (int cp : {2, 4, 8}) EXPECT_EQ(leaves(cp), one) << "cp " << cp;
}

TEST(SuperBatch, ASliceOwnsItsChunkAndTheMirroredOne) {
  const auto samples = samples_of({161}, 1);  // 160 inputs, chunks of 10
  const auto b = make_super_batches(samples, 0, 1, 8, 65536);
  const RankRows& third = b[0].ranks[3];
  std::set<int> positions;
  for (size_t t = 0; t < third.seq.size(); ++t)
    if (third.seq[t] >= 0) positions.insert(third.position[t]);
  std::set<int> expected;
  for (int i = 0; i < 10; ++i) expected.insert({30 + i, 120 + i});
  EXPECT_EQ(positions, expected);
}

TEST(SuperBatch, LeavesAreMultiplesOf64) {
  const auto samples = samples_of(kLengths, 1);
  for (int cp : {1, 2, 4, 8}) {
    const auto batches = make_super_batches(samples, 0, 6, cp, 65536);
    for (const RankRows& r : batches[0].ranks)
      for (int leaf = 0; leaf <= r.leaves.count; ++leaf) {
        EXPECT_EQ(r.leaves.begin[leaf] % 64, 0);
        EXPECT_EQ(r.head_leaves.begin[leaf] % 64, 0);
      }
  }
}

TEST(SuperBatch, HeadRowsAreThoseThatPredictAResponseToken) {
  const auto samples = samples_of({40}, 30);
  const auto b = make_super_batches(samples, 0, 1, 1, 65536);
  std::set<int> predicted;
  const RankRows& r = b[0].ranks[0];
  for (int32_t t : r.head_index)
    if (t >= 0) predicted.insert(r.position[t] + 1);
  std::set<int> expected;
  for (int p = 30; p < 40; ++p) expected.insert(p);
  EXPECT_EQ(predicted, expected);
}

TEST(SuperBatch, ClosesBeforeTheLimitAndKeepsSamplesWhole) {
  const auto samples = samples_of({101, 101, 101, 301}, 1);
  const auto b = make_super_batches(samples, 0, 4, 2, 200);
  ASSERT_EQ(b.size(), 3u);
  EXPECT_EQ(b[0].count, 2);
  EXPECT_EQ(b[1].count, 1);
  EXPECT_EQ(b[2].count, 1);  // longer than the limit: alone
}

TEST(AttentionOrder, JoinsWhatLiesTogetherAndLeavesPaddingOut) {
  const auto samples = samples_of(kLengths, 1);
  for (int cp : {1, 2, 4, 8})
    for (const SuperBatch& batch : make_super_batches(samples, 0, 6, cp, 65536))
      for (const RankRows& rows : batch.ranks) {
        const AttentionOrder order = attention_order(rows);
        ASSERT_EQ(order.to.size(), rows.seq.size());
        size_t real = 0;
        for (size_t t = 0; t < rows.seq.size(); ++t) {
          if (rows.seq[t] < 0) {
            EXPECT_EQ(order.to[t], -1);
            continue;
          }
          ++real;
          EXPECT_EQ(order.from[order.to[t]], static_cast<int32_t>(t));
        }
        EXPECT_EQ(order.from.size(), real);
        int32_t next = 0;
        for (const AttentionSegment& s : order.segments) {
          EXPECT_EQ(s.row, next);
          for (int32_t i = 0; i < s.len; ++i) {
            EXPECT_EQ(rows.seq[order.from[next + i]], s.seq);
            EXPECT_EQ(rows.position[order.from[next + i]], s.position + i);
          }
          next += s.len;
        }
        EXPECT_EQ(next, static_cast<int32_t>(real));
        if (cp == 1) {
          EXPECT_EQ(order.segments.size(), 6u);  // whole sequences
        }
      }
}

TEST(LeafChunks, AreEqualSubtreesWithinTheLimitOrSingleLeaves) {
  const Leaves leaves{.count = 8, .begin = {0, 64, 64, 256, 320, 384, 448, 512, 512}};
  const auto sizes = [&](int64_t rows) {
    std::vector<int64_t> all;
    int64_t next = 0;
    int leaf = 0;
    for (const LeafChunk& c : leaf_chunks(leaves, rows)) {
      EXPECT_EQ(c.begin, next);
      for (int l = 0; l < c.leaves.count; ++l, ++leaf)
        EXPECT_EQ(c.begin + c.leaves.begin[l], leaves.begin[leaf]);
      EXPECT_EQ(c.begin + c.leaves.begin[c.leaves.count], c.end);
      next = c.end;
      all.push_back(c.end - c.begin);
    }
    EXPECT_EQ(leaf, 8);
    EXPECT_EQ(next, 512);
    return all;
  };
  EXPECT_EQ(sizes(512), (std::vector<int64_t>{512}));
  EXPECT_EQ(sizes(511), (std::vector<int64_t>{320, 192}));
  EXPECT_EQ(sizes(319), (std::vector<int64_t>{64, 256, 128, 64}));
  EXPECT_EQ(sizes(1), (std::vector<int64_t>{64, 0, 192, 64, 64, 64, 64, 0}));
}

TEST(TreeSum, JoinsAsOneTree) {
  const Ops& ops = cpu_ops(1);
  for (const int chunks : {1, 2, 4, 8}) {
    constexpr int64_t kN = 5;
    std::vector<float> parts, out(kN, -1), whole(kN), scratch(TreeSum::scratch_floats(chunks, kN));
    TreeAddArgs all{.part = {},
                    .count = chunks,
                    .out = whole.data(),
                    .n = kN,
                    .out_f32 = true,
                    .accumulate = false};
    for (int64_t i = 0; i < chunks * kN; ++i)
      parts.push_back(static_cast<float>(mix64(i) >> 40) * 0x1p-20f);
    for (int c = 0; c < chunks; ++c) all.part[c] = parts.data() + c * kN;
    ops.tree_add(nullptr, all);
    TreeSum sum(ops, nullptr, chunks, kN, out.data(), scratch.data());
    for (int c = 0; c < chunks; ++c) {
      std::copy_n(parts.begin() + c * kN, kN, sum.next());
      sum.join();
    }
    EXPECT_EQ(std::memcmp(out.data(), whole.data(), kN * sizeof(float)), 0) << chunks;
  }
}

}  // namespace
}  // namespace rlk
