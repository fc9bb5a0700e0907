#pragma once
// Rank mapping of a layout (R0). Pure arithmetic; every function is total for a valid layout.

#include <vector>

namespace rlk {

// tp * cp == ranks; rollout_tp * rollout_cp divides ranks; all powers of two up to 8.
struct Topology {
  int ranks = 8, tp = 4, cp = 2, rollout_tp = 4, rollout_cp = 1;

  int engines() const { return ranks / (rollout_tp * rollout_cp); }

  int tp_index(int rank) const { return rank * tp / ranks; }
  int cp_index(int rank) const { return rank % (ranks / tp); }
  std::vector<int> tp_group(int rank) const;  // same cp_index, ascending tp_index
  std::vector<int> cp_group(int rank) const;  // same tp_index

  int rollout_tp_index(int rank) const { return rank * rollout_tp / ranks; }
  int rollout_place(int rank) const { return rank % (ranks / rollout_tp); }  // (engine, cp) pair
  int engine(int rank) const { return rollout_place(rank) / rollout_cp; }
  int rollout_cp_index(int rank) const { return rollout_place(rank) % rollout_cp; }
  std::vector<int> rollout_tp_group(int rank) const;  // same engine and rollout_cp_index
  std::vector<int> rollout_cp_group(int rank) const;  // same engine and rollout_tp_index
  std::vector<int> engine_group(int rank) const;      // all ranks of this rank's engine, ascending

  // Virtual slices [first, first + count) a rank holds.
  struct Range {
    int first, count;
  };
  Range train_slices(int rank) const { return {tp_index(rank) * (8 / tp), 8 / tp}; }
  Range rollout_slices(int rank) const {
    return {rollout_tp_index(rank) * (8 / rollout_tp), 8 / rollout_tp};
  }
  Range cp_slices(int rank) const { return {cp_index(rank) * (8 / cp), 8 / cp}; }
};

}  // namespace rlk
