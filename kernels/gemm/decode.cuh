#pragma once
// gemm for few tokens (T <= 64): bound by streaming the weights once. Same order as tile.cuh, so
// the same bits: each slice one wgmma chain from +0, k16 steps ascending, slices joined by the
// aligned tree.
//
// Tokens are the wgmma's M operand (64 rows, those past T multiply whatever follows in shared
// memory and are dropped), kRows weight rows its N operand. A CTA computes all slices of its rows:
// one consumer warpgroup the lower half of them, one the upper half, each with its subtree in
// registers. One warpgroup alone falls behind: the weights are there long before the activations,
// and what has piled up by then is worked off in half the time by two (4096 x 4096, T = 8: 10.4 us
// against 9.3). Stages fill the shared memory, so that one CTA owns an SM and 150 KB and more of
// weights are in flight there; the weights start streaming before the kernel ahead has ended
// (programmatic dependent launch), the activations after it.
//
// gemm_swiglu is the same with other rows in a tile: kRows / 2 gate rows and the up rows of the
// same columns, so that a thread holds a gate and its up and writes what swiglu would make of them.

#include "kernels/common/math.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/common/wgmma.cuh"
#include "rlk/device/ops.h"

namespace rlk::cuda {

struct DecodeShape {
  int tokens;       // T
  int token_rows;   // rows of x a stage has room for: T rounded up to 8
  int rows;         // N; gated: fs, columns of act in one slice of the FFN
  int tiles;        // of all CTAs
  int slice_tiles;  // gated: of one slice of the FFN
  int stage_count;  // a multiple of `halves`
  int halves;       // consumer warpgroups at work: 2, or 1 where there is one slice
  int slices;       // of one half
  int slice_steps;  // stages of one slice
  int64_t ldy;
  bool weights_ready;  // GemmArgs::w_ready
};

namespace decode {

constexpr int kStageBlocks = 2;  // k64 blocks a stage: halves the barrier traffic
constexpr int kMaxTokens = 64;
constexpr int kProducerWarp = 8;  // after the two consumer warpgroups
constexpr int kThreads = 2 * 128 + 32;

constexpr int token_bytes(int token_rows) {
  return kStageBlocks * token_rows * 128;
}
constexpr int weight_bytes(int rows) {
  return kStageBlocks * rows * 128;
}
// The upper half's sums on their way to the lower half: 16 bytes a thread for each 8 weight rows.
constexpr int exchange_bytes(int rows) {
  return rows / 8 * 128 * 16;
}

struct Smem {
  uint32_t stages, exchange, bars;
  int stage_bytes, stage_count;
  int arriving_bytes;  // of a stage: its weights and T rows of x
  __device__ uint32_t weights(int s) const { return stages + s * stage_bytes; }
  __device__ uint32_t full(int s) const { return bars + s * 8; }
  __device__ uint32_t empty(int s) const { return bars + (stage_count + s) * 8; }
  __device__ uint32_t taken() const { return bars + 2 * stage_count * 8; }
};

// Position in the ring of stages; the halves take turns, so a consumer steps over the other's.
struct Ring {
  int stage;
  uint32_t phase = 0;
  __device__ void advance(int step, int count) {
    stage += step;
    if (stage >= count) {
      stage -= count;
      phase ^= 1;
    }
  }
};

// The first row of a tile; gated: the first column of act, in a slice of the FFN.
struct Place {
  int row, slice;
};
template <int kRows, bool kGated>
__device__ Place place_of(const DecodeShape& shape, int tile) {
  if constexpr (kGated)
    return {tile % shape.slice_tiles * (kRows / 2), tile / shape.slice_tiles};
  else
    return {tile * kRows, 0};
}

// The producer thread: stages in the order in which the consumers take them: tile by tile, step by
// step through a half's slices, the halves in turn.
template <int kRows, bool kGated>
class Producer {
 public:
  __device__ Producer(const CUtensorMap* x_map, const CUtensorMap* w_map, const DecodeShape& shape,
                      const Smem& smem)
      : x_map_(x_map), w_map_(w_map), shape_(shape), smem_(smem) {
    policy_ = l2_evict_first();
    const int first = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
    const int mine = (shape.tiles - first + grid - 1) / grid;
    total_ = mine * shape.halves * shape.slices * shape.slice_steps;
    ahead_ = min(total_, smem.stage_count);
  }

  // Fills every stage with weights; the activations follow in run().
  __device__ void start() const {
    Cursor at = begin();
    for (int s = 0; s < ahead_; ++s, advance(at)) {
      mbar_arrive_expect(smem_.full(s), smem_.arriving_bytes);
      load_weights(s, at);
    }
  }

  __device__ void run() const {
    grid_dependency_wait();
    Cursor at = begin();
    for (int s = 0; s < ahead_; ++s, advance(at)) load_tokens(s, at);
    Ring ring{0, 1};  // past the first use of every stage, or never used again
    for (int i = ahead_; i < total_; ++i, advance(at)) {
      mbar_wait(smem_.empty(ring.stage), ring.phase ^ 1);
      mbar_arrive_expect(smem_.full(ring.stage), smem_.arriving_bytes);
      load_weights(ring.stage, at);
      load_tokens(ring.stage, at);
      ring.advance(1, smem_.stage_count);
    }
  }

 private:
  struct Cursor {
    int tile, slice, step, half;
  };
  __device__ Cursor begin() const { return {static_cast<int>(blockIdx.x), 0, 0, 0}; }
  __device__ void advance(Cursor& at) const {
    if (++at.half < shape_.halves) return;
    at.half = 0;
    if (++at.step < shape_.slice_steps) return;
    at.step = 0;
    if (++at.slice < shape_.slices) return;
    at.slice = 0;
    at.tile += static_cast<int>(gridDim.x);
  }
  __device__ void load_weights(int stage, const Cursor& at) const {
    const int slice = at.half * shape_.slices + at.slice;
    const Place place = place_of<kRows, kGated>(shape_, at.tile);
#pragma unroll
    for (int q = 0; q < kStageBlocks; ++q) {
      const uint32_t to = smem_.weights(stage) + q * kRows * 128;
      const int k = (at.step * kStageBlocks + q) * 64;
      if constexpr (kGated)
        tma_load_5d(to, w_map_, smem_.full(stage), {k, place.row, 0, place.slice}, slice, policy_);
      else
        tma_load_3d(to, w_map_, smem_.full(stage), k, place.row, slice, policy_);
    }
  }
  __device__ void load_tokens(int stage, const Cursor& at) const {
    const uint32_t to = smem_.weights(stage) + weight_bytes(kRows);
#pragma unroll
    for (int q = 0; q < kStageBlocks; ++q)
      tma_load_3d(to + q * shape_.token_rows * 128, x_map_, smem_.full(stage),
                  (at.step * kStageBlocks + q) * 64, 0, at.half * shape_.slices + at.slice);
  }

  const CUtensorMap* x_map_;
  const CUtensorMap* w_map_;
  const DecodeShape& shape_;
  const Smem& smem_;
  uint64_t policy_;
  int total_, ahead_;
};

// A consumer warpgroup's walk over its stages.
template <int kRows>
class Chain {
 public:
  __device__ Chain(const DecodeShape& shape, const Smem& smem, int half)
      : shape_(shape), smem_(smem), ring_{half} {}

  // One slice from +0, complete on return. The first step is apart so that ptxas sees that it reads
  // no accumulator.
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
    ring_.advance(shape_.halves, smem_.stage_count);
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

// The subtree over a half's slices (1, 2 or 4) as a binary counter: after an odd slice the pending
// sums of equal weight are joined, lower slices on the left.
template <int kRows>
__device__ void sum_slices(float (&acc)[kRows / 2], int slices, Chain<kRows>& chain) {
  constexpr int kAcc = kRows / 2;
  float leaf[kAcc], pair[kAcc];
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
  }
}

// The tree's root. Thread t of the upper half hands its sums to thread t of the lower one, in slots
// of their own.
constexpr int kHandedOver = 1;  // named barrier of both warpgroups

template <int kRows>
__device__ void hand_over(const float (&acc)[kRows / 2], const Smem& smem, int nth_tile) {
  const uint32_t slot = smem.exchange + (threadIdx.x & 127) * 16;
  if (nth_tile > 0) mbar_wait(smem.taken(), (nth_tile - 1) & 1);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j)
    st_shared(slot + j * 2048,
              make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]));
  bar_arrive(kHandedOver, 256);
}

template <int kRows>
__device__ void take_over(float (&acc)[kRows / 2], const Smem& smem) {
  const uint32_t slot = smem.exchange + (threadIdx.x & 127) * 16;
  bar_sync(kHandedOver, 256);
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const float4 upper = ld_shared_float4(slot + j * 2048);
    acc[4 * j] += upper.x, acc[4 * j + 1] += upper.y;
    acc[4 * j + 2] += upper.z, acc[4 * j + 3] += upper.w;
  }
  mbar_arrive(smem.taken());
}

template <int kRows>
__device__ void store(void* y, const float (&acc)[kRows / 2], const DecodeShape& shape, int tile,
                      bool out_f32) {
  const int lane = lane_id();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int t = (warp_id() & 3) * 16 + h * 8 + lane / 4;
    if (t >= shape.tokens) continue;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int n = tile * kRows + j * 8 + (lane & 3) * 2;
      if (n >= shape.rows) continue;
      const float a = acc[4 * j + 2 * h], b = acc[4 * j + 2 * h + 1];
      const int64_t at = t * shape.ldy + n;
      if (out_f32)
        *reinterpret_cast<float2*>(static_cast<float*>(y) + at) = make_float2(a, b);
      else
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(y) + at) = round_pair(a, b);
    }
  }
}

// act of kRows / 2 columns: a thread's first sums are gates, the others their ups.
template <int kRows>
__device__ void store_gated(void* act, const float (&acc)[kRows / 2], const DecodeShape& shape,
                            int tile) {
  const int lane = lane_id();
  const Place place = place_of<kRows, true>(shape, tile);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int t = (warp_id() & 3) * 16 + h * 8 + lane / 4;
    if (t >= shape.tokens) continue;
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      const int column = place.row + j * 8 + (lane & 3) * 2;
      if (column >= shape.rows) continue;
      const int g = 4 * j + 2 * h, u = g + kRows / 4;
      const uint32_t gate = round_pair(acc[g], acc[g + 1]), up = round_pair(acc[u], acc[u + 1]);
      const int64_t at = t * shape.ldy + int64_t{place.slice} * shape.rows + column;
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(act) + at) = round_pair(
          gated(low_float(gate), low_float(up)), gated(high_float(gate), high_float(up)));
    }
  }
}

template <int kRows, bool kGated>
__device__ void consume(const DecodeShape& shape, const Smem& smem, void* y, bool out_f32,
                        int half) {
  Chain<kRows> chain(shape, smem, half);
  int nth_tile = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < shape.tiles;
       tile += static_cast<int>(gridDim.x), ++nth_tile) {
    float acc[kRows / 2];
    sum_slices<kRows>(acc, shape.slices, chain);
    if (half == 1) {
      hand_over<kRows>(acc, smem, nth_tile);
    } else {
      if (shape.halves == 2) take_over<kRows>(acc, smem);
      if constexpr (kGated)
        store_gated<kRows>(y, acc, shape, tile);
      else
        store<kRows>(y, acc, shape, tile, out_f32);
    }
  }
}

// y: act where kGated.
template <int kRows, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
           const __grid_constant__ DecodeShape shape, void* y, const bool out_f32) {
  static_assert(kRows % 8 == 0 && weight_bytes(kRows) % 1024 == 0, "tiles of whole swizzle atoms");
  extern __shared__ uint8_t raw[];
  Smem smem;
  smem.stage_count = shape.stage_count;
  smem.stage_bytes = weight_bytes(kRows) + token_bytes(shape.token_rows);
  smem.arriving_bytes = weight_bytes(kRows) + token_bytes(shape.tokens);
  smem.stages = (smem_address(raw) + 1023) & ~1023u;
  // Rows past T of the last stage read up to 8 KB beyond it: padding, so that nobody writes what
  // they read.
  smem.exchange = smem.stages + smem.stage_count * smem.stage_bytes + 8192;
  smem.bars = smem.exchange + exchange_bytes(kRows);

  const int warp = warp_id();
  const Producer<kRows, kGated> producer(&x_map, &w_map, shape, smem);
  grid_launch_dependents();
  if (warp == kProducerWarp && lane_id() == 0) {
    // One lane: an mbarrier's address must be uniform, lanes that differ would take turns anyway.
    for (int s = 0; s < smem.stage_count; ++s) {
      mbar_init(smem.full(s), 1);
      mbar_init(smem.empty(s), 4);  // the warps of the half that takes it
    }
    mbar_init(smem.taken(), 128);
    mbar_init_fence();
    if (!shape.weights_ready) grid_dependency_wait();
    producer.start();
  }
  __syncwarp();
  __syncthreads();
  // Roles branch on the warp first: inside a lane's branch the ring would leave the uniform
  // registers, and every wgmma would wait for its descriptor to be moved there.
  if (warp == kProducerWarp) {
    if (lane_id() == 0) producer.run();
  } else if (warp / 4 < shape.halves) {
    consume<kRows, kGated>(shape, smem, y, out_f32, warp / 4);
  }
}

}  // namespace decode
}  // namespace rlk::cuda
