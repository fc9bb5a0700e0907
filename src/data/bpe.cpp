#include "bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "rlk/base/philox.h"

namespace rlk {
namespace {

constexpr uint64_t kFree = ~uint64_t{0};
constexpr uint32_t kNoRank = ~uint32_t{0};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeMerges::BpeMerges(size_t count, const std::array<int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids), table_(std::bit_ceil(2 * count + 2), Entry{kFree, kNoRank, -1}) {}

size_t BpeMerges::slot_of(uint64_t pair) const {
  const size_t mask = table_.size() - 1;
  size_t slot = mix64(pair) & mask;
  while (table_[slot].pair != pair && table_[slot].pair != kFree) slot = (slot + 1) & mask;
  return slot;
}

bool BpeMerges::add(int32_t left, int32_t right, int32_t merged, uint32_t rank) {
  Entry& entry = table_[slot_of(pair_key(left, right))];
  if (entry.pair != kFree) return false;
  entry = {pair_key(left, right), rank, merged};
  return true;
}

void BpeMerges::look_up(BpeScratch::Symbol* symbol, int32_t right) const {
  const Entry& entry = table_[slot_of(pair_key(symbol->id, right))];
  symbol->rank = entry.rank;
  symbol->merged = entry.merged;
}

void BpeMerges::encode(std::string_view piece, BpeScratch* scratch,
                       std::vector<int32_t>* ids) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;  // rank << 32 | position: lowest rank, then leftmost
  const int32_t n = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < n ? i + 1 : -1, kNoRank,
                  -1};
  }
  const auto consider = [&](int32_t i) {
    BpeScratch::Symbol& s = symbols[i];
    s.rank = kNoRank;
    if (s.next < 0) return;
    look_up(&s, symbols[s.next].id);
    if (s.rank == kNoRank) return;
    heap.push_back(static_cast<uint64_t>(s.rank) << 32 | static_cast<uint32_t>(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) consider(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t best = heap.back();
    heap.pop_back();
    const int32_t i = static_cast<int32_t>(best & 0xffffffffu);
    BpeScratch::Symbol& s = symbols[i];
    if (s.id < 0 || s.rank != best >> 32) continue;  // the pair is gone
    BpeScratch::Symbol& gone = symbols[s.next];
    s.id = s.merged;
    s.next = gone.next;
    gone.id = -1;
    if (s.next >= 0) symbols[s.next].previous = i;
    consider(i);
    if (s.previous >= 0) consider(s.previous);
  }
  for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace rlk
