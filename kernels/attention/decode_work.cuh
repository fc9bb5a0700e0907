#pragma once
// What a CTA of attention's decode works on, and where: arguments, shared memory, work items.

#include "kernels/attention/pages.cuh"
#include "kernels/attention/rule.cuh"
#include "kernels/common/launch.h"

namespace rlk::cuda::attn {

struct DecodeArgs {
  PageTable pages;
  const AttentionSegment* segments;
  bf16* o;
  float* lse;
  float* split_o;    // [n_segments, KH, splits, group, Dh]
  float2* split_ml;  // [n_segments, KH, splits, group]: m, l
  int n_segments, H, KH, group, splits;
  int split_shift;  // log2 of a split's keys
  float c;
  bool past_ready;
};

template <int Dh, int kMachines>
struct Smem {
  static constexpr int kTileBytes = kTile * Dh * 2;
  static constexpr int kStages = 6 * (128 / Dh) / kMachines;
  static constexpr int kQBytes = 8 * Dh * 2;  // one 8-row atom for every 64 columns
  static constexpr int kQBuffers = 2;
  static constexpr int kPBytes = 8 * kTile * 2;  // bf16 P^T: an 8-row atom for every 64 keys; two
  static constexpr int kQ = kStages * kTileBytes;
  static constexpr int kP = kQ + kQBuffers * kQBytes;
  static constexpr int kWeights = kP + 2 * kPBytes;       // fp32 P [key][8], for the row sums
  static constexpr int kTops = kWeights + kTile * 8 * 4;  // maxima of a tile [warp][8]
  static constexpr int kSums = kTops + 4 * 8 * 4;         // l of the eight heads, two half trees
  static constexpr int kMachineBytes = (kSums + 2 * 8 * 4 + 1023) / 1024 * 1024;
  static constexpr int kBarrierBytes = (2 * kStages + 2 * kQBuffers) * 8 + 16;
  static constexpr int kBytes = kMachines * (kMachineBytes + kBarrierBytes) + 1024;
  static_assert(kBytes <= kMaxSharedBytes && kMachineBytes % 1024 == 0);

  uint32_t tiles, bars;
  __device__ Smem(uint32_t base, int machine)
      : tiles(base + machine * kMachineBytes),
        bars(base + kMachines * kMachineBytes + machine * kBarrierBytes) {}
  __device__ uint32_t tile(int s) const { return tiles + s * kTileBytes; }
  __device__ uint32_t full(int s) const { return bars + s * 16; }
  __device__ uint32_t empty(int s) const { return bars + s * 16 + 8; }
  __device__ uint32_t q_buffer(int i) const { return tiles + kQ + i * kQBytes; }
  __device__ uint32_t p_buffer(int i) const { return tiles + kP + i * kPBytes; }
  __device__ uint32_t weights() const { return tiles + kWeights; }
  __device__ uint32_t tops() const { return tiles + kTops; }
  __device__ uint32_t sums() const { return tiles + kSums; }
  __device__ uint32_t q_full(int i) const { return bars + kStages * 16 + i * 16; }
  __device__ uint32_t q_empty(int i) const { return q_full(i) + 8; }
  __device__ uint32_t last_flag(int i) const {
    return bars + kStages * 16 + kQBuffers * 16 + i * 4;
  }
};

// Named barriers of machine v.
struct Barriers {
  int consumers, written, counted;  // consumers; consumers -> publisher; publisher -> consumers
  __device__ explicit Barriers(int v) : consumers(1 + v), written(3 + v), counted(5 + v) {}
};
// Threads of `written` and `counted`: consumers and publisher.
inline constexpr int kHandOver = 160;

// A shared item: both CTAs compute all of S, each its 64 columns of O. Each fetches half of the
// columns of K for both, and its own half of V. The SMs of a TPC fetch no more together than one
// alone, so the two are the first and third of a cluster of four. The others only keep their SMs,
// from where the next GEMM's weights would share what the TPC fetches.
inline constexpr int kParts = 2, kSharedCluster = 4, kPartStep = 2;
inline constexpr uint16_t kPartCtas = 0b101;

// Items run over (split, segment, KV head), heads fastest, up to the last split that any segment
// has: the bound that a graph was captured with costs nothing where contexts are shorter. Items of
// no key are passed over by every role alike.
struct Item {
  int segment, head, split, context, tiles, splits;
  AttentionSegment s;
};

__device__ inline int context_of(const AttentionSegment& s) {
  return s.len > 0 ? s.position + 1 : 0;
}

// For a whole warp.
__device__ inline int item_count(const DecodeArgs& a) {
  int longest = 0;
  for (int i = lane_id(); i < a.n_segments; i += 32)
    longest = max(longest, context_of(a.segments[i]));
  longest = __reduce_max_sync(0xffffffffu, longest);
  return ((longest + (1 << a.split_shift) - 1) >> a.split_shift) * a.n_segments * a.KH;
}

template <class F>
__device__ void for_items(const DecodeArgs& a, int first, int step, F f) {
  const int total = item_count(a);
  AttentionSegment next{};
  if (first < total) next = a.segments[first / a.KH % a.n_segments];
  for (int i = first; i < total; i += step) {
    Item item;
    item.s = next;
    if (i + step < total)
      next = a.segments[(i + step) / a.KH % a.n_segments];  // hides its latency behind this item
    item.head = i % a.KH;
    item.segment = i / a.KH % a.n_segments;
    item.split = i / a.KH / a.n_segments;
    item.context = context_of(item.s);
    const int keys = min(item.context - (item.split << a.split_shift), 1 << a.split_shift);
    if (keys <= 0) continue;
    item.tiles = (keys + kTile - 1) / kTile;
    item.splits = (item.context + (1 << a.split_shift) - 1) >> a.split_shift;
    f(item);
  }
}

}  // namespace rlk::cuda::attn
