#pragma once
// The training and prefill tile of gemm, gemm_dgrad and gemm_wgrad: C[M, N] = tree over leaves of
// chains A B, one persistent kernel for the three (they differ in which operand is stored along the
// contraction).
//
// A CTA owns tiles of 128 x 128: a producer thread feeds six stages of one k64 block each by TMA,
// two consumer warpgroups own 64 rows each. CTAs pair up along M and share the B block by
// multicast. Order of one element: each leaf one wgmma chain from +0, k16 steps ascending; leaves
// joined by the aligned tree. The order depends on nothing but the leaves: not on M, the tile, the
// cluster or the grid.
//
// Why this tile: the tree needs four sums at once (leaf in flight, pending leaf, pair, quad). At
// 128 columns a thread holds 64 values of each, and three and a half of them fit its 240 registers;
// half of the pending quad waits in shared memory. Wider tiles move fewer bytes but spill the tree.

#include "kernels/common/ptx.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/common/wgmma.cuh"
#include "rlk/device/ops.h"

namespace rlk::cuda {

enum class GemmKind { forward, dgrad, wgrad };

struct TileShape {
  int m_tiles;               // ceil(M / (128 * cluster)): tiles of a whole cluster
  int n_tiles;               // over all groups
  int group_tiles;           // n tiles of one group (dgrad, wgrad; else n_tiles)
  int group_columns;         // columns of one group
  int leaf_blocks[kSlices];  // k64 blocks of each leaf's chain, at least one
  int leaf_begin[kSlices];   // wgrad: the leaf's first token
  bool out_f32;
};

namespace tile {

constexpr int kRows = 128, kColumns = 128, kBlock = 64;
constexpr int kStages = 6;
constexpr int kPanel =
    64 * 128;  // 64 rows of 128 bytes: what one TMA box or one warpgroup's half takes
constexpr int kStageBytes = 4 * kPanel;  // A: two panels, B: two panels
constexpr int kAcc = kColumns / 2;       // accumulators a thread
constexpr int kQuadKept = 32;            // of the pending quad sum, values that stay in registers
constexpr int kScratch =
    128 * (kAcc - kQuadKept) * 4;  // a warpgroup's: rest of the quad, or two store buffers
constexpr int kStoreBuffer = 8192;
constexpr int kThreads = 384;
constexpr int kRaster =
    8;  // clusters along M that walk the columns together, so that their operands meet in L2
constexpr size_t kSharedBytes = 1024 + kStages * kStageBytes + 2 * kScratch + 2 * kStages * 8;

static_assert(kStageBytes % 1024 == 0, "128-byte swizzle atoms start on multiples of 1024");
static_assert(kScratch >= 2 * kStoreBuffer, "the store's double buffer reuses the quad's space");
static_assert(kSharedBytes <= 232448, "shared memory of one CTA");

struct Smem {
  uint32_t stages, scratch, bars;
  __device__ explicit Smem(const void* raw) {
    stages = (smem_address(raw) + 1023) & ~1023u;
    scratch = stages + kStages * kStageBytes;
    bars = scratch + 2 * kScratch;
  }
  __device__ uint32_t full(int s) const { return bars + s * 8; }
  __device__ uint32_t empty(int s) const { return bars + (kStages + s) * 8; }
};

// Position in the ring of stages.
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct TileOrigin {
  int m, n, group;
};

// Tiles in raster order: kRaster clusters along M, then the columns, then the next kRaster.
__device__ inline TileOrigin origin_of(const TileShape& shape, int tile, int cluster, int rank) {
  const int band = tile / (kRaster * shape.n_tiles);
  const int in_band = tile - band * kRaster * shape.n_tiles;
  const int rows = min(kRaster, shape.m_tiles - band * kRaster);
  const int n_tile = in_band / rows, group = n_tile / shape.group_tiles;
  return {((band * kRaster + in_band % rows) * cluster + rank) * kRows,
          (n_tile - group * shape.group_tiles) * kColumns, group};
}

// One k64 block of a leaf into a stage: this CTA's A rows, and its share of the cluster's B block.
template <GemmKind kKind>
__device__ void load_block(const CUtensorMap* a_map, const CUtensorMap* b_map, uint32_t to,
                           uint32_t bar, const TileOrigin& o, int leaf, int leaf_begin, int block,
                           int cluster, int rank) {
  const int k = leaf_begin + block * kBlock;
  const int slice = kKind == GemmKind::wgrad ? 0 : leaf;
  if constexpr (kKind == GemmKind::wgrad) {
    tma_load_4d(to, a_map, bar, {o.m, k, 0, 0});
    tma_load_4d(to + kPanel, a_map, bar, {o.m + 64, k, 0, 0});
  } else {
    tma_load_4d(to, a_map, bar, {k, o.m, slice, 0});
  }
  const auto everyone = static_cast<uint16_t>((1 << cluster) - 1);
  for (int half = rank; half < 2; half += cluster) {
    const int n = o.n + half * 64;
    const TmaCoord at =
        kKind == GemmKind::forward ? TmaCoord{k, n, slice, 0} : TmaCoord{n, k, slice, o.group};
    tma_load_4d_multicast(to + (2 + half) * kPanel, b_map, bar, at, everyone);
  }
}

template <GemmKind kKind, int kLeaves>
__device__ void produce(const CUtensorMap* a_map, const CUtensorMap* b_map, const TileShape& shape,
                        const Smem& smem, int cluster, int rank) {
  grid_dependency_wait();
  Ring ring;
  const int tiles = shape.m_tiles * shape.n_tiles, step = static_cast<int>(gridDim.x) / cluster;
  for (int t = static_cast<int>(blockIdx.x) / cluster; t < tiles; t += step) {
    const TileOrigin o = origin_of(shape, t, cluster, rank);
    for (int leaf = 0; leaf < kLeaves; ++leaf) {
      const int begin = shape.leaf_begin[leaf], blocks = shape.leaf_blocks[leaf];
      for (int block = 0; block < blocks; ++block) {
        mbar_wait(smem.empty(ring.stage), ring.phase ^ 1);
        mbar_arrive_expect(smem.full(ring.stage), kStageBytes);
        load_block<kKind>(a_map, b_map, smem.stages + ring.stage * kStageBytes,
                          smem.full(ring.stage), o, leaf, begin, block, cluster, rank);
        ring.advance();
      }
    }
  }
}

// A consumer warpgroup: chains, the tree, the store.
template <GemmKind kKind>
class Consumer {
 public:
  __device__ Consumer(const Smem& smem, int warpgroup, int cluster)
      : smem_(smem), warpgroup_(warpgroup), thread_(static_cast<int>(threadIdx.x) & 127) {
    const uint32_t a = smem.stages + warpgroup * kPanel, b = smem.stages + 2 * kPanel;
    a_ = kMnA ? mn_major_low(a) : k_major_low(a);
    b_ = kMnB ? mn_major_low(b) : k_major_low(b);
    releases_ = lane_id() < cluster;
    peer_empty_ = releases_ ? cluster_map(smem.empty(0), static_cast<uint32_t>(lane_id())) : 0;
    scratch_ = smem.scratch + warpgroup * kScratch;
  }

  // One leaf: a chain from +0 over `blocks` k64 blocks. Leaves its last block in flight; what was
  // in flight before is complete. The first block is apart so that ptxas sees that it reads no
  // accumulator: otherwise `acc` lives on from its last use and every pending sum is moved.
  __device__ void chain(float (&acc)[kAcc], int blocks) {
    step<true>(acc);
    for (int block = 1; block < blocks; ++block) step<false>(acc);
  }

  __device__ void drain(float (&acc)[kAcc]) {
    wgmma_wait<0>();
    wgmma_keep(acc);
    release();
  }

  // Two leaves and their sum, in `sum`.
  __device__ void pair(float (&sum)[kAcc], float (&other)[kAcc], int blocks0, int blocks1) {
    chain(sum, blocks0);
    chain(other, blocks1);
    drain(other);
    wgmma_keep(sum);
    add(sum, other);
  }

  __device__ void add(float (&sum)[kAcc], const float (&x)[kAcc]) {
#pragma unroll
    for (int i = 0; i < kAcc; ++i) sum[i] += x[i];
  }

  // The pending quad waits partly in registers, partly in 16-byte slots of the thread's own: no
  // conflicts, no barrier.
  __device__ void put_quad(const float (&v)[kAcc], float (&kept)[kQuadKept]) {
    stores_done();
#pragma unroll
    for (int i = 0; i < kQuadKept; ++i) kept[i] = v[i];
    const uint32_t slot = opaque(scratch_ + thread_ * 16);
#pragma unroll
    for (int i = kQuadKept; i < kAcc; i += 4)
      st_shared(slot + (i - kQuadKept) * 512, make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
  }

  __device__ void add_quad(float (&v)[kAcc], const float (&kept)[kQuadKept]) {
#pragma unroll
    for (int i = 0; i < kQuadKept; ++i) v[i] += kept[i];
    const uint32_t slot = opaque(scratch_ + thread_ * 16);
#pragma unroll
    for (int i = kQuadKept; i < kAcc; i += 4) {
      const float4 q = ld_shared_float4(slot + (i - kQuadKept) * 512);
      v[i] += q.x, v[i + 1] += q.y, v[i + 2] += q.z, v[i + 3] += q.w;
    }
  }

  // Rounds once (or not at all) and stores 64 x 128 through swizzled buffers; TMA drops rows and
  // columns past the ends.
  __device__ void store(const CUtensorMap* map, const float (&v)[kAcc], const TileOrigin& o,
                        const TileShape& shape) {
    if (shape.out_f32)
      store_chunks<32>(map, v, o, shape);
    else
      store_chunks<64>(map, v, o, shape);
  }

  __device__ void finish() {
    if (thread_ == 0) bulk_wait<0>();
  }

 private:
  static constexpr bool kMnA = kKind == GemmKind::wgrad, kMnB = kKind != GemmKind::forward;
  static constexpr int kStepA = kMnA ? kMnStep : kKStep, kStepB = kMnB ? kMnStep : kKStep;

  template <bool kFirst>
  __device__ void step(float (&acc)[kAcc]) {
    mbar_wait(smem_.full(ring_.stage), ring_.phase);
    const uint32_t stage = ring_.stage * (kStageBytes / 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k)
      wgmma_ss<kColumns, kMnA, kMnB>(acc, descriptor(a_ + stage + k * (kStepA / 16)),
                                     descriptor(b_ + stage + k * (kStepB / 16)), k > 0 || !kFirst);
    wgmma_commit();
    wgmma_wait<1>();
    release();
    unreleased_ = ring_.stage;
    ring_.advance();
  }

  // A stage is free once every consumer warp of the cluster has finished reading it.
  __device__ void release() {
    if (unreleased_ >= 0 && releases_) mbar_arrive_cluster(peer_empty_ + unreleased_ * 8);
    unreleased_ = -1;
  }

  __device__ void stores_done() {
    if (thread_ == 0) bulk_wait_read<0>();
    bar_sync(1 + warpgroup_, 128);
  }

  template <int kChunk>  // columns that fill 128 bytes: 64 of bf16, 32 of f32
  __device__ void store_chunks(const CUtensorMap* map, const float (&v)[kAcc], const TileOrigin& o,
                               const TileShape& shape) {
#pragma unroll
    for (int c = 0; c < kColumns / kChunk; ++c) {
      const uint32_t buffer = scratch_ + (c & 1) * kStoreBuffer;
      if (thread_ == 0) bulk_wait_read<1>();
      bar_sync(1 + warpgroup_, 128);
      if constexpr (kChunk == 64)
        write_bf16(buffer, v, c * 32);
      else
        write_f32(buffer, v, c * 16);
      fence_async_proxy();
      bar_sync(1 + warpgroup_, 128);
      if (thread_ == 0) {
        const int n = o.n + c * kChunk;
        if (n < shape.group_columns) tma_store_3d(map, buffer, n, o.m + warpgroup_ * 64, o.group);
        bulk_commit();
      }
    }
  }

  __device__ void write_bf16(uint32_t buffer, const float (&v)[kAcc], int first) {
    const int lane = lane_id();
    const auto row = opaque(static_cast<uint32_t>(thread_ / 32 * 16 + (lane & 15)));
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int i = first + q * 8;
      const uint32_t column = static_cast<uint32_t>(q * 2 + lane / 16);
      stmatrix_x4(buffer + row * 128 + ((column ^ (row & 7)) * 16), round_pair(v[i], v[i + 1]),
                  round_pair(v[i + 2], v[i + 3]), round_pair(v[i + 4], v[i + 5]),
                  round_pair(v[i + 6], v[i + 7]));
    }
  }

  __device__ void write_f32(uint32_t buffer, const float (&v)[kAcc], int first) {
    const int lane = lane_id();
    const auto row = opaque(static_cast<uint32_t>(thread_ / 32 * 16 + lane / 4));
    const uint32_t half = static_cast<uint32_t>(lane & 3) / 2, word = (lane & 1) * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t at =
          ((j * 2 + half) ^ (row & 7)) * 16 + word;  // rows r and r + 8 swizzle alike
      const int i = first + j * 4;
      st_shared(buffer + row * 128 + at, make_float2(v[i], v[i + 1]));
      st_shared(buffer + (row + 8) * 128 + at, make_float2(v[i + 2], v[i + 3]));
    }
  }

  const Smem& smem_;
  int warpgroup_, thread_;
  uint32_t a_, b_;  // low words of the operands' descriptors in stage 0
  bool releases_;
  uint32_t peer_empty_, scratch_;
  Ring ring_;
  int unreleased_ = -1;
};

__device__ inline void copy(float (&to)[kAcc], const float (&from)[kAcc]) {
#pragma unroll
  for (int i = 0; i < kAcc; ++i) to[i] = from[i];
}

template <GemmKind kKind, int kLeaves>
__device__ void consume(const CUtensorMap* y_map, const TileShape& shape, const Smem& smem,
                        int warpgroup, int cluster, int rank) {
  Consumer<kKind> c(smem, warpgroup, cluster);
  const int* blocks = shape.leaf_blocks;
  const int tiles = shape.m_tiles * shape.n_tiles, step = static_cast<int>(gridDim.x) / cluster;
  for (int t = static_cast<int>(blockIdx.x) / cluster; t < tiles; t += step) {
    float sum[kAcc];
    if constexpr (kLeaves == 1) {
      c.chain(sum, blocks[0]);
      c.drain(sum);
    } else {
      float leaf[kAcc];
      c.pair(sum, leaf, blocks[0], blocks[1]);
      if constexpr (kLeaves >= 4) {
        float pending[kAcc];
        copy(pending, sum);
        c.pair(sum, leaf, blocks[2], blocks[3]);
        c.add(sum, pending);
        if constexpr (kLeaves == 8) {
          float kept[kQuadKept];
          c.put_quad(sum, kept);
          c.pair(sum, leaf, blocks[4], blocks[5]);
          copy(pending, sum);
          c.pair(sum, leaf, blocks[6], blocks[7]);
          c.add(sum, pending);
          c.add_quad(sum, kept);
        }
      }
    }
    c.store(y_map, sum, origin_of(shape, t, cluster, rank), shape);
  }
  c.finish();
}

template <GemmKind kKind, int kLeaves>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
           const __grid_constant__ CUtensorMap y_map, const __grid_constant__ TileShape shape,
           const int cluster) {
  extern __shared__ uint8_t raw[];
  const Smem smem(raw);
  const int rank = static_cast<int>(cluster_rank());
  const int warpgroup = warp_id() / 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbar_init(smem.full(s), 1);
      mbar_init(smem.empty(s), cluster * 8);  // consumer warps of the cluster
    }
    mbar_init_fence();
    prefetch_tensor_map(&a_map);
    prefetch_tensor_map(&b_map);
    prefetch_tensor_map(&y_map);
  }
  grid_launch_dependents();
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  if (warpgroup == 2) {
    set_max_registers_down<24>();
    if (threadIdx.x == 256) produce<kKind, kLeaves>(&a_map, &b_map, shape, smem, cluster, rank);
  } else {
    set_max_registers_up<240>();
    consume<kKind, kLeaves>(&y_map, shape, smem, warpgroup, cluster, rank);
  }
  __syncwarp();
  cluster_arrive();  // nobody leaves while a peer may still signal its barriers
  cluster_wait();
}

}  // namespace tile
}  // namespace rlk::cuda
