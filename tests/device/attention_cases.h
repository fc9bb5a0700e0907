#pragma once
// Attention shapes that every backend is tested on, and the paged cache that they run over.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "device/harness.h"

namespace rlk::test {

struct AttentionCase {
  const char* name;
  int H, KH, Dh;
  std::vector<int> lengths;  // of the sequences
  float q_std = 1.f;         // larger: sharper softmax, more moves of the running maximum
  std::string text() const {
    std::string t = std::string(name) + " H=" + std::to_string(H) + " KH=" + std::to_string(KH) +
                    " Dh=" + std::to_string(Dh) + " lengths";
    for (const int n : lengths) t += " " + std::to_string(n);
    return t;
  }
};

inline std::vector<AttentionCase> attention_cases(bool cuda) {
  if (cuda)  // the head sizes that CUDA kernels take; Qwen3-8B whole and as one rank of TP 8
    return {
        {"tiny", 16, 8, 64, {1, 7, 130, 257}},
        {"tiny, one rank of 8", 2, 1, 64, {129, 300, 1, 64}},
        {"Qwen3-8B", 32, 8, 128, {1, 127, 128, 129}},
        {"Qwen3-8B, one rank of 8", 4, 1, 128, {1023, 1024, 1025}},
        {"sharp", 4, 1, 128, {2500}, 8.f},
        {"group of 8", 8, 1, 128, {200, 33}},
        {"group of 5", 5, 1, 128, {140}},
        {"group of 3", 6, 2, 128, {131}},
        {"group of 1", 2, 2, 128, {260}},
    };
  return {
      {"tiny", 16, 8, 64, {1, 7, 130, 257}},
      {"one rank of 8", 2, 1, 64, {129, 300, 1, 64}},
      {"several splits", 2, 1, 64, {2500}},
      {"sharp", 2, 1, 64, {2300}, 12.f},
      {"split edges", 1, 1, 32, {1023, 1024, 1025}},
      {"group of 8", 8, 1, 128, {70, 33}},
      {"group of 5", 5, 1, 64, {140}},
      {"group of 3", 6, 2, 64, {131}},
      {"group of 4", 4, 1, 128, {150}},
      {"group of 1", 2, 2, 64, {260}},
  };
}

// Operands of a case: whole sequences, rows packed one after another.
struct AttentionData {
  AttentionCase c;
  std::vector<int> begin;  // first row of each sequence, and the end
  std::vector<bf16> q, k, v, d_o;

  explicit AttentionData(const AttentionCase& which, uint64_t seed = 7) : c(which), begin{0} {
    for (const int n : c.lengths) begin.push_back(begin.back() + n);
    Random random(seed);
    const auto rows = static_cast<size_t>(begin.back()), Dh = static_cast<size_t>(c.Dh);
    q = random.bf16s(rows * static_cast<size_t>(c.H) * Dh, c.q_std);
    k = random.bf16s(rows * static_cast<size_t>(c.KH) * Dh);
    v = random.bf16s(rows * static_cast<size_t>(c.KH) * Dh);
    d_o = random.bf16s(rows * static_cast<size_t>(c.H) * Dh);
  }
  int rows() const { return begin.back(); }
  float scale() const { return 1.f / std::sqrt(static_cast<float>(c.Dh)); }
  std::vector<AttentionSegment> whole() const {
    std::vector<AttentionSegment> s;
    for (size_t i = 0; i < c.lengths.size(); ++i)
      s.push_back({static_cast<int>(i), 0, c.lengths[i], begin[i]});
    return s;
  }
};

// How K/V lie: pages of a size, over some shards, in an order that depends on the seed. What
// belongs to no key is NaN: an op that multiplies a key past a row's last shows it.
struct CacheLayout {
  int page_size = 128;
  int shards = 1;
  bool heads_outside = false;  // [KH][page_size][Dh] inside a page, instead of [page_size][KH][Dh]
  uint64_t seed = 0;
};

class PagedCache {
 public:
  PagedCache(const Ops& ops, const AttentionData& data, const CacheLayout& layout) {
    const AttentionCase& c = data.c;
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    view_.max_pages = (longest + layout.page_size - 1) / layout.page_size + 1;
    view_.page_size = layout.page_size;
    view_.token_stride = layout.heads_outside ? c.Dh : c.KH * c.Dh;
    view_.head_stride = layout.heads_outside ? layout.page_size * c.Dh : c.Dh;
    view_.page_stride = int64_t{layout.page_size} * c.KH * c.Dh;
    const int pages = view_.max_pages * static_cast<int>(c.lengths.size());
    std::vector<int> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    Random random(layout.seed + 99);
    if (layout.seed != 0)
      for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    const int per_shard = (pages + layout.shards - 1) / layout.shards;
    std::vector<int32_t> table;
    for (const int page : order) table.push_back(page / per_shard << 24 | page % per_shard);
    const auto shard_elements = static_cast<size_t>(per_shard * view_.page_stride);
    for (const bool is_k : {true, false})
      for (int s = 0; s < layout.shards; ++s) {
        std::vector<bf16> host(shard_elements, bf16{0x7fc0});
        fill(data, table, s, is_k ? data.k : data.v, host);
        memory_.emplace_back(ops, host);
        (is_k ? view_.k : view_.v)[s] = memory_.back().data();
      }
    tables_.emplace_back(ops, table);
    view_.page_table = tables_.back().data();
  }
  const KvCache& view() const { return view_; }

 private:
  void fill(const AttentionData& data, const std::vector<int32_t>& table, int shard,
            const std::vector<bf16>& from, std::vector<bf16>& to) const {
    const AttentionCase& c = data.c;
    for (size_t s = 0; s < c.lengths.size(); ++s)
      for (int p = 0; p < c.lengths[s]; ++p) {
        const int32_t entry = table[s * static_cast<size_t>(view_.max_pages) +
                                    static_cast<size_t>(p / view_.page_size)];
        if (entry >> 24 != shard) continue;
        for (int h = 0; h < c.KH; ++h)
          std::copy_n(from.begin() + (int64_t{data.begin[s] + p} * c.KH + h) * c.Dh, c.Dh,
                      to.begin() + (entry & 0xffffff) * view_.page_stride +
                          p % view_.page_size * view_.token_stride + h * view_.head_stride);
      }
  }

  KvCache view_{};
  std::vector<DeviceArray<bf16>> memory_;
  std::vector<DeviceArray<int32_t>> tables_;
};

}  // namespace rlk::test
