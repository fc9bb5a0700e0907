#pragma once
// Token leaves for the tests of weight gradients, and the tree that joins the ranks' parts.

#include <initializer_list>
#include <string>
#include <vector>

#include "device/harness.h"

namespace rlk::test {

// One leaf for each length, in units of 64 rows.
inline Leaves leaves_of(std::initializer_list<int64_t> units) {
  Leaves leaves{};
  for (const int64_t n : units) {
    leaves.begin[leaves.count + 1] = leaves.begin[leaves.count] + 64 * n;
    ++leaves.count;
  }
  return leaves;
}

inline std::vector<Leaves> leaf_cases() {
  return {leaves_of({1, 2, 1, 1, 3, 1, 1, 1}),
          leaves_of({0, 2, 0, 0, 1, 0, 0, 1}),
          leaves_of({1, 1, 0, 2}),
          leaves_of({3}),
          leaves_of({0, 5}),
          leaves_of({0, 0, 0, 0, 0, 0, 0, 0})};
}

inline std::string text(const Leaves& leaves) {
  std::string t = "leaves";
  for (int l = 0; l < leaves.count; ++l)
    t += " " + std::to_string(leaves.begin[l + 1] - leaves.begin[l]);
  return t;
}

// The leaves that rank r of `ranks` owns.
inline Leaves leaves_of_rank(const Leaves& all, int r, int ranks) {
  Leaves leaves{all.count / ranks, {}};
  for (int l = 0; l <= leaves.count; ++l) leaves.begin[l] = all.begin[r * leaves.count + l];
  return leaves;
}

// The aligned tree over the ranks' parts.
inline std::vector<float> join(const Ops& ops, const std::vector<std::vector<float>>& parts) {
  std::vector<DeviceArray<float>> on_device;
  TreeAddArgs args{};
  for (const std::vector<float>& part : parts) on_device.emplace_back(ops, part);
  for (size_t i = 0; i < parts.size(); ++i) args.part[i] = on_device[i].data();
  DeviceArray<float> out(ops, parts[0].size());
  args.count = static_cast<int>(parts.size());
  args.out = out.data();
  args.n = static_cast<int64_t>(parts[0].size());
  args.out_f32 = true;
  ops.tree_add(nullptr, args);
  return out.host();
}

}  // namespace rlk::test
