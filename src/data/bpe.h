#pragma once
// Byte-pair merging. BpeMerges is immutable and shared by threads; a BpeScratch is one thread's.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace rlk {

struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // -1 at the ends
    uint32_t rank;           // of the merge with `next`; kNoRank when there is none
    int32_t merged;          // what that merge gives
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;
};

class BpeMerges {
 public:
  // Capacity for `count` merges; byte_ids[b] is the token of the single byte b.
  BpeMerges(size_t count, const std::array<int32_t, 256>& byte_ids);

  // Adds the merge left + right -> merged; false when the pair is already there.
  bool add(int32_t left, int32_t right, int32_t merged, uint32_t rank);

  // Appends the ids of one piece: the merge of lowest rank first, leftmost among equals, until none
  // applies. O(n log n) in the bytes of the piece.
  void encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Entry {
    uint64_t pair;
    uint32_t rank;
    int32_t merged;
  };
  size_t slot_of(uint64_t pair) const;
  void look_up(BpeScratch::Symbol* symbol, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing, a power of two, at most half full
};

}  // namespace rlk
