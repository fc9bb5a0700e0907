#pragma once
// Paged K/V into shared memory: one tensor map per shard, one box per (page, 64 columns).

#include <cstdint>

#include "kernels/attention/rule.cuh"
#include "kernels/common/check.h"
#include "kernels/common/ptx.cuh"
#include "kernels/common/tensor_map.h"
#include "rlk/device/ops.h"

namespace rlk::cuda::attn {

// A page-table entry: shard << 24 | page.
inline constexpr int kPageBits = 24;

// K and V of one layer as 4-d tensors (column, key in page, head, page), for 1 or kSlices shards.
template <int kShards>
struct KvMaps {
  CUtensorMap k[kShards], v[kShards];
};

struct PageTable {
  const int32_t* entries;  // [sequences, max_pages]
  int32_t max_pages;
  int32_t shift;  // log2 of the page size
};

inline PageTable page_table(const char* op, const KvCache& cache) {
  int shift = 4;
  while (shift < 7 && (1 << shift) != cache.page_size) ++shift;
  require(cache.page_size == 1 << shift, op,
          "page_size = " + std::to_string(cache.page_size) + ", must be 16, 32, 64 or 128");
  return {cache.page_table, cache.max_pages, shift};
}

inline int shards_of(const KvCache& cache) {
  int n = 0;
  for (int s = 0; s < kSlices; ++s)
    if (cache.k[s] != nullptr) n = s + 1;
  return n;
}

// The map has as many pages as an entry can name: the hardware checks coordinates against the map,
// the page table is trusted to name pages that exist.
template <int kShards>
KvMaps<kShards> kv_maps(const char* op, const KvCache& c, int KH, int Dh) {
  KvMaps<kShards> maps{};
  const auto map = [&](const bf16* base) {
    return tensor_map(op, base, TmaType::bf16,
                      {{Dh, 1, 64},
                       {c.page_size, c.token_stride, c.page_size},
                       {KH, c.head_stride, 1},
                       {int64_t{1} << kPageBits, c.page_stride, 1}});
  };
  for (int s = 0; s < kShards; ++s) {
    if (c.k[s] == nullptr) continue;
    maps.k[s] = map(c.k[s]);
    maps.v[s] = map(c.v[s]);
  }
  return maps;
}

#ifdef __CUDACC__

// 32 entries of a sequence's page-table row, one a lane of the loading warp, so that a tile's boxes
// are issued by as many lanes at once. Pages past the context are never looked up: the last one is
// read again, and its keys are masked.
class PageWindow {
 public:
  __device__ void start(const PageTable& table, int seq, int context) {
    row_ = table.entries + static_cast<int64_t>(seq) * table.max_pages;
    last_ = (context - 1) >> table.shift;
    per_tile_ = kTile >> table.shift;
    base_ = -32;
  }
  // The page of box `i` of tile `j`; all lanes, j warp-uniform.
  __device__ uint32_t page(int j, int i) {
    const int first = j * per_tile_;
    if (first - base_ >= 32 || first < base_) {
      base_ = first & ~31;
      entry_ = row_[min(base_ + lane_id(), last_)];
    }
    return static_cast<uint32_t>(__shfl_sync(0xffffffffu, entry_, (first + i) & 31));
  }
  __device__ int per_tile() const { return per_tile_; }

 private:
  const int32_t* row_;
  int last_, per_tile_, base_, entry_;
};

// Panels of a tile of 128 keys of one head, kPanels of 64 columns from `first` on: kTile rows of
// 128 bytes each. All lanes of one warp. `bytes`: what the barrier expects, these panels and
// whatever others load to it. kOnce: nobody reads these keys again soon (decode), so they should
// not push anything else out of the L2. `ctas`: into the same place of these CTAs of the cluster;
// 0: here.
template <int kPanels, bool kOnce>
__device__ inline void load_panels(uint32_t to, const CUtensorMap* maps, uint32_t bar, int bytes,
                                   PageWindow& window, int j, int head, int page_shift, int first,
                                   uint16_t ctas) {
  const int lane = lane_id(), panel = lane % kPanels, box = lane / kPanels;
  const uint32_t entry = window.page(j, box);
  if (lane == 0) mbar_arrive_expect(bar, bytes);
  __syncwarp();
  if (box < window.per_tile()) {
    const TmaCoord at{(first + panel) * 64, 0, head,
                      static_cast<int>(entry & ((1u << kPageBits) - 1))};
    const CUtensorMap* map = maps + (entry >> kPageBits);
    to += panel * kPanelBytes + (box << page_shift) * kRowBytes;
    if (ctas != 0)
      tma_load_4d_multicast(to, map, bar, at, ctas, l2_evict_first());
    else if constexpr (kOnce)
      tma_load_4d(to, map, bar, at, l2_evict_first());
    else
      tma_load_4d(to, map, bar, at);
  }
}

template <int Dh, bool kOnce>
__device__ inline void load_tile(uint32_t to, const CUtensorMap* maps, uint32_t bar,
                                 PageWindow& window, int j, int head, int page_shift) {
  load_panels<Dh / 64, kOnce>(to, maps, bar, kTile * Dh * 2, window, j, head, page_shift, 0, 0);
}

// Keys of the tile from `live` on become zero, all threads 0..n-1 taking part: their probability is
// 0, but 0 x NaN would not be. Followed by a barrier among them.
template <int Dh>
__device__ inline void zero_keys(uint32_t tile, int live, int thread, int threads) {
  constexpr int kChunks = kRowBytes / 16;
  for (int i = live * kChunks + thread; i < kTile * kChunks; i += threads)
#pragma unroll
    for (int panel = 0; panel < Dh / 64; ++panel)
      st_shared(tile + panel * kPanelBytes + i * 16, make_uint4(0, 0, 0, 0));
  fence_async_proxy();
}

#endif

}  // namespace rlk::cuda::attn
