#pragma once
// gemm for few tokens (T <= 64): bound by streaming the weights once. Same order as tile.cuh, so
// the same bits: each slice one wgmma chain from +0, k16 steps ascending, slices joined by the
// aligned tree.
//
// Tokens are the wgmma's M operand (64 rows, those past T multiply whatever follows in shared
// memory and are dropped), kRows weight rows its N operand. A CTA runs the slices of its rows one
// after another with the tree in registers, or a cluster of `cluster` CTAs shares them: each runs
// slices/cluster adjacent ones, the partial sums are exchanged through distributed shared memory,
// each CTA finishes its share of the rows. Stages fill the shared memory, so that one CTA owns an
// SM and ~190 KB of weights are in flight there; the weights start streaming before the kernel
// ahead has ended (programmatic dependent launch), activations after it.

#include "kernels/common/ptx.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/common/wgmma.cuh"
#include "rlk/device/ops.h"

namespace rlk::cuda {

struct DecodeShape {
  int tokens;      // T
  int token_rows;  // rows of x a stage holds: T rounded up to 8
  int rows;        // N
  int stage_count;
  int slices;
  int slice_steps;  // stages of one slice
  int64_t ldy;
  bool weights_ready;  // GemmArgs::w_ready
};

namespace decode {

constexpr int kStageBlocks = 2;  // k64 blocks a stage: halves the barrier traffic
constexpr int kMaxTokens = 64;
constexpr int kThreads = 128 + 32;  // one consumer warpgroup, one producer warp

constexpr int token_bytes(int token_rows) {
  return kStageBlocks * token_rows * 128;
}
constexpr int weight_bytes(int rows) {
  return kStageBlocks * rows * 128;
}
// Cluster exchange: the sums of 128 threads, 16 bytes for each 8 weight rows.
constexpr int exchange_bytes(int rows) {
  return rows / 8 * 128 * 16;
}

struct Smem {
  uint32_t stages, exchange, bars;
  int stage_bytes, stage_count;
  __device__ uint32_t weights(int s) const { return stages + s * stage_bytes; }
  __device__ uint32_t full(int s) const { return bars + s * 8; }
  __device__ uint32_t empty(int s) const { return bars + (stage_count + s) * 8; }
  __device__ uint32_t received() const { return bars + 2 * stage_count * 8; }
};

struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void advance(int count) {
    if (++stage == count) {
      stage = 0;
      phase ^= 1;
    }
  }
};

template <int kRows>
struct Producer {
  const CUtensorMap* x_map;
  const CUtensorMap* w_map;
  const DecodeShape& shape;
  const Smem& smem;
  uint64_t policy;

  __device__ void load_weights(int stage, int tile, int slice, int step) const {
    for (int q = 0; q < kStageBlocks; ++q)
      tma_load_3d(smem.weights(stage) + q * kRows * 128, w_map, smem.full(stage),
                  (step * kStageBlocks + q) * 64, tile * kRows, slice, policy);
  }
  __device__ void load_tokens(int stage, int slice, int step) const {
    for (int q = 0; q < kStageBlocks; ++q)
      tma_load_3d(smem.weights(stage) + weight_bytes(kRows) + q * shape.token_rows * 128, x_map,
                  smem.full(stage), (step * kStageBlocks + q) * 64, 0, slice);
  }
  __device__ void expect(int stage) const {
    mbar_arrive_expect(smem.full(stage), smem.stage_bytes);
  }
};

// Where the producer stands: the stages of a tile's slices in order, then those of the next tile.
struct Cursor {
  int tile, slice, step;
  __device__ void advance(const DecodeShape& shape, int first_slice, int end_slice, int tile_step) {
    if (++step < shape.slice_steps) return;
    step = 0;
    if (++slice < end_slice) return;
    slice = first_slice;
    tile += tile_step;
  }
};

// The consumer warpgroup's walk over the stages.
template <int kRows>
class Chain {
 public:
  __device__ Chain(const DecodeShape& shape, const Smem& smem) : shape_(shape), smem_(smem) {}

  // One slice from +0, complete on return. The first step is apart so that ptxas sees it read no
  // accumulator.
  __device__ void run(float (&acc)[kRows / 2]) {
    step<true>(acc);
    for (int i = 1; i < shape_.slice_steps; ++i) step<false>(acc);
    wgmma_wait<0>();
    wgmma_keep(acc);
    release();
  }

 private:
  template <bool kFirst>
  __device__ void step(float (&acc)[kRows / 2]) {
    mbar_wait(smem_.full(ring_.stage), ring_.phase);
    const uint32_t w = k_major_low(smem_.weights(ring_.stage));
    const uint32_t x = k_major_low(smem_.weights(ring_.stage) + weight_bytes(kRows));
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < kStageBlocks; ++q)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_ss<kRows>(acc, descriptor(x + q * shape_.token_rows * 8 + k * 2),
                        descriptor(w + q * kRows * 8 + k * 2), !kFirst || q > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    release();
    unreleased_ = ring_.stage;
    ring_.advance(smem_.stage_count);
  }

  __device__ void release() {
    if (unreleased_ >= 0 && lane_id() == 0) mbar_arrive(smem_.empty(unreleased_));
    unreleased_ = -1;
  }

  const DecodeShape& shape_;
  const Smem& smem_;
  Ring ring_;
  int unreleased_ = -1;
};

// The tree as a binary counter: after an odd slice the pending sums of equal weight are joined,
// lower slices on the left.
template <int kRows>
__device__ void sum_slices(float (&acc)[kRows / 2], int slices, Chain<kRows>& chain) {
  constexpr int kAcc = kRows / 2;
  float leaf[kAcc], pair[kAcc], quad[kAcc];
  for (int s = 0; s < slices; ++s) {
    chain.run(acc);
    if ((s & 1) == 0) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) leaf[i] = acc[i];
      continue;
    }
#pragma unroll
    for (int i = 0; i < kAcc; ++i) acc[i] = leaf[i] + acc[i];
    if ((s & 2) == 0) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) pair[i] = acc[i];
      continue;
    }
#pragma unroll
    for (int i = 0; i < kAcc; ++i) acc[i] = pair[i] + acc[i];
    if ((s & 4) == 0) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) quad[i] = acc[i];
      continue;
    }
#pragma unroll
    for (int i = 0; i < kAcc; ++i) acc[i] = quad[i] + acc[i];
  }
}

// Joins the cluster's partial sums for this CTA's share of the 8-row groups: [first, first +
// kGroups / cluster). Thread-private slots: thread t of a CTA exchanges with thread t of its peers
// only.
template <int kRows>
__device__ void join_cluster(float (&acc)[kRows / 2], const Smem& smem, int cluster, int rank) {
  constexpr int kGroups = kRows / 8;
  const int share = kGroups / cluster;
  const uint32_t slots = smem.exchange + threadIdx.x * 16;
  constexpr int kSlot = 128 * 16;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int owner = j / share;
    if (owner == rank) continue;
    const auto peer = static_cast<uint32_t>(owner);
    st_async(cluster_map(slots + (rank * share + j % share) * kSlot, peer),
             make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]),
             cluster_map(smem.received(), peer));
  }
  mbar_wait_cluster(smem.received(), 0);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    if (j / share != rank) continue;
    float v[kSlices][4];
#pragma unroll
    for (int c = 0; c < kSlices; ++c) {
      float4 q = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
      if (c < cluster && c != rank) q = ld_shared_float4(slots + (c * share + j % share) * kSlot);
      v[c][0] = q.x, v[c][1] = q.y, v[c][2] = q.z, v[c][3] = q.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float p01 = v[0][i] + v[1][i];
      const float p03 = p01 + (v[2][i] + v[3][i]);
      const float p07 = p03 + ((v[4][i] + v[5][i]) + (v[6][i] + v[7][i]));
      acc[4 * j + i] = cluster == 2 ? p01 : cluster == 4 ? p03 : p07;
    }
  }
}

template <int kRows>
__device__ void store(void* y, const float (&acc)[kRows / 2], const DecodeShape& shape, int tile,
                      int first_group, int end_group, bool out_f32) {
  const int lane = lane_id();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int t = warp_id() * 16 + h * 8 + lane / 4;
    if (t >= shape.tokens) continue;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int n = tile * kRows + j * 8 + (lane & 3) * 2;
      if (j < first_group || j >= end_group || n >= shape.rows) continue;
      const float a = acc[4 * j + 2 * h], b = acc[4 * j + 2 * h + 1];
      const int64_t at = t * shape.ldy + n;
      if (out_f32)
        *reinterpret_cast<float2*>(static_cast<float*>(y) + at) = make_float2(a, b);
      else
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(y) + at) = round_pair(a, b);
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
           const __grid_constant__ DecodeShape shape, void* y, const bool out_f32,
           const int cluster) {
  static_assert(kRows % 8 == 0 && weight_bytes(kRows) % 1024 == 0, "tiles of whole swizzle atoms");
  extern __shared__ uint8_t raw[];
  Smem smem;
  smem.stage_count = shape.stage_count;
  smem.stage_bytes = weight_bytes(kRows) + token_bytes(shape.token_rows);
  smem.stages = (smem_address(raw) + 1023) & ~1023u;
  smem.exchange = smem.stages + smem.stage_count * smem.stage_bytes;
  // Rows past T of the last stage read up to 8 KB beyond it: the exchange space, or padding.
  smem.bars = smem.exchange + (cluster > 1 ? exchange_bytes(kRows) : 8192);

  const int warp = warp_id();
  const int rank = static_cast<int>(cluster_rank()), own = shape.slices / cluster;
  const int first_slice = rank * own, end_slice = first_slice + own;
  const int tiles = (shape.rows + kRows - 1) / kRows;
  const int first_tile = static_cast<int>(blockIdx.x) / cluster;
  const int tile_step = static_cast<int>(gridDim.x) / cluster;
  const bool is_producer = warp == 4 && lane_id() == 0;
  const Producer<kRows> producer{&x_map, &w_map, shape, smem, l2_evict_first()};
  const int mine = first_tile < tiles ? (tiles - first_tile + tile_step - 1) / tile_step : 0;
  const int total = mine * own * shape.slice_steps, ahead = min(total, smem.stage_count);

  grid_launch_dependents();
  if (is_producer) {
    for (int s = 0; s < smem.stage_count; ++s) {
      mbar_init(smem.full(s), 1);
      mbar_init(smem.empty(s), 4);
    }
    mbar_init(smem.received(), 1);
    mbar_init_fence();
    const int warps = (shape.tokens + 15) / 16;  // that hold rows of a token
    if (cluster > 1)
      mbar_arrive_expect(smem.received(), (cluster - 1) * (kRows / 8 / cluster) * warps * 32 * 16);
    if (!shape.weights_ready) grid_dependency_wait();
    Cursor at{first_tile, first_slice, 0};
    for (int s = 0; s < ahead; ++s, at.advance(shape, first_slice, end_slice, tile_step)) {
      producer.expect(s);
      producer.load_weights(s, at.tile, at.slice, at.step);
    }
  }
  __syncwarp();
  __syncthreads();
  if (cluster > 1) {  // every CTA's barriers exist before anyone sends
    cluster_arrive();
    cluster_wait();
  }
  if (is_producer) {
    grid_dependency_wait();
    Cursor at{first_tile, first_slice, 0};
    for (int s = 0; s < ahead; ++s, at.advance(shape, first_slice, end_slice, tile_step))
      producer.load_tokens(s, at.slice, at.step);
    Ring ring;
    for (int s = 0; s < ahead; ++s) ring.advance(smem.stage_count);
    for (int i = ahead; i < total; ++i, at.advance(shape, first_slice, end_slice, tile_step)) {
      mbar_wait(smem.empty(ring.stage), ring.phase ^ 1);
      producer.expect(ring.stage);
      producer.load_weights(ring.stage, at.tile, at.slice, at.step);
      producer.load_tokens(ring.stage, at.slice, at.step);
      ring.advance(smem.stage_count);
    }
  } else if (warp < 4) {
    Chain<kRows> chain(shape, smem);
    for (int tile = first_tile; tile < tiles; tile += tile_step) {
      float acc[kRows / 2];
      sum_slices<kRows>(acc, own, chain);
      if (warp * 16 >= shape.tokens) continue;  // no row of a token in this warp
      const int share = kRows / 8 / cluster;
      if (cluster > 1) join_cluster<kRows>(acc, smem, cluster, rank);
      store<kRows>(y, acc, shape, tile, rank * share, (rank + 1) * share, out_f32);
    }
  }
}

}  // namespace decode
}  // namespace rlk::cuda
