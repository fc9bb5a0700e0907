// Rank mapping: groups partition the ranks, slices cover the model once, and a rollout shard lies
// inside the training shard wherever rollout TP >= training TP.
#include "rlk/base/topology.h"

#include <gtest/gtest.h>

#include <set>

namespace {

using rlk::Topology;

std::vector<Topology> all_layouts() {
  std::vector<Topology> layouts;
  for (int ranks : {1, 2, 4, 8})
    for (int tp = 1; tp <= ranks; tp *= 2)
      for (int rtp = 1; rtp <= ranks; rtp *= 2)
        for (int rcp = 1; rtp * rcp <= ranks; rcp *= 2)
          layouts.push_back({ranks, tp, ranks / tp, rtp, rcp});
  return layouts;
}

std::string name(const Topology& t) {
  return std::to_string(t.ranks) + " ranks, tp " + std::to_string(t.tp) + ", cp " +
         std::to_string(t.cp) + ", rollout tp " + std::to_string(t.rollout_tp) + ", cp " +
         std::to_string(t.rollout_cp);
}

// Every member of a group names the same group, and the groups have `size` members.
template <class Group>
void expect_partition(const Topology& t, size_t size, Group group) {
  for (int r = 0; r < t.ranks; ++r) {
    const std::vector<int> members = group(r);
    ASSERT_EQ(members.size(), size) << name(t) << " rank " << r;
    ASSERT_TRUE(std::is_sorted(members.begin(), members.end()));
    for (int m : members) ASSERT_EQ(group(m), members) << name(t) << " ranks " << r << " and " << m;
  }
}

}  // namespace

TEST(Topology, GroupsPartitionTheRanks) {
  for (const Topology& t : all_layouts()) {
    expect_partition(t, t.tp, [&](int r) { return t.tp_group(r); });
    expect_partition(t, t.cp, [&](int r) { return t.cp_group(r); });
    expect_partition(t, t.rollout_tp, [&](int r) { return t.rollout_tp_group(r); });
    expect_partition(t, t.rollout_tp * t.rollout_cp, [&](int r) { return t.engine_group(r); });
  }
}

TEST(Topology, EveryGroupHoldsEachSliceOnce) {
  for (const Topology& t : all_layouts())
    for (int r = 0; r < t.ranks; ++r) {
      const auto covers = [&](const std::vector<int>& group, auto range) {
        std::vector<int> slices;
        for (int m : group)
          for (int s = 0; s < range(m).count; ++s) slices.push_back(range(m).first + s);
        return slices == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7};
      };
      EXPECT_TRUE(covers(t.tp_group(r), [&](int m) { return t.train_slices(m); })) << name(t);
      EXPECT_TRUE(covers(t.cp_group(r), [&](int m) { return t.cp_slices(m); })) << name(t);
      EXPECT_TRUE(covers(t.rollout_tp_group(r), [&](int m) { return t.rollout_slices(m); }))
          << name(t);
    }
}

TEST(Topology, EnginesAndTheirCpIndicesAreDistinct) {
  for (const Topology& t : all_layouts()) {
    std::set<std::tuple<int, int, int>> places;
    for (int r = 0; r < t.ranks; ++r) {
      ASSERT_LT(t.engine(r), t.engines());
      places.insert({t.engine(r), t.rollout_tp_index(r), t.rollout_cp_index(r)});
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(t.ranks)) << name(t);
  }
}

TEST(Topology, RolloutShardIsAViewOfTheTrainingShard) {
  for (const Topology& t : all_layouts())
    for (int r = 0; r < t.ranks; ++r) {
      const auto train = t.train_slices(r), rollout = t.rollout_slices(r);
      const auto inside = [](Topology::Range a, Topology::Range b) {
        return a.first >= b.first && a.first + a.count <= b.first + b.count;
      };
      EXPECT_TRUE(t.rollout_tp >= t.tp ? inside(rollout, train) : inside(train, rollout))
          << name(t) << " rank " << r;
    }
}
