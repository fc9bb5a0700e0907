#include "rlk/base/topology.h"

namespace rlk {
namespace {

template <class Same>
std::vector<int> ranks_where(int ranks, Same same) {
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r)
    if (same(r)) members.push_back(r);
  return members;
}

}  // namespace

std::vector<int> Topology::tp_group(int rank) const {
  return ranks_where(ranks, [&](int r) { return cp_index(r) == cp_index(rank); });
}

std::vector<int> Topology::cp_group(int rank) const {
  return ranks_where(ranks, [&](int r) { return tp_index(r) == tp_index(rank); });
}

std::vector<int> Topology::rollout_tp_group(int rank) const {
  return ranks_where(ranks, [&](int r) { return rollout_place(r) == rollout_place(rank); });
}

std::vector<int> Topology::rollout_cp_group(int rank) const {
  return ranks_where(ranks, [&](int r) {
    return engine(r) == engine(rank) && rollout_tp_index(r) == rollout_tp_index(rank);
  });
}

std::vector<int> Topology::engine_group(int rank) const {
  return ranks_where(ranks, [&](int r) { return engine(r) == engine(rank); });
}

}  // namespace rlk
