// logits_support: exact top-k and top-p thresholds by counting. bf16 has 65,536 values, so a row's
// distinct values are a histogram, and the support depends on the counts alone.
//
// A cluster of two blocks a row; the first counts the values >= 0 (-0 among them), the second the
// negative ones, each in 32,768 counters of its shared memory, ordered by descending value. Both
// read the whole row (the second read comes from L2). Integer atomics in shared memory: sums of
// integers have no order. Thread i owns counters [32i, 32i + 32): its mass is a chain in descending
// order, in fp64; the threads' masses are summed by a fixed scan, first block, then second block.
// Top-k: the value at which the cumulative count reaches k. Top-p: the first value of what top-k
// left at which the cumulative mass reaches top_p times the total.

#include <cooperative_groups.h>

#include <utility>

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/launchers.h"
#include "kernels/logits/logits.cuh"

namespace rlk::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kRun = 32;           // counters a thread
constexpr int kStride = kRun + 1;  // in words: a warp's threads read different banks
constexpr int kCounterBytes = kThreads * kStride * 4;
constexpr uint32_t kInfBits = 0x7f80;
constexpr uint32_t kMagnitude = 0x7fff;
constexpr int kNone = 0x7fffffff;

// What the two blocks tell each other.
struct Exchange {
  uint32_t count[2];
  int first[2];  // position of the largest value, kNone when the half is empty
  double mass[2];
  uint32_t kth_key;  // 0 unless top-k cuts
  int found;  // position in the first block where top-p is reached, kNone when it is not there
};

// Exclusive prefix over the block's threads; `total` to all. Warp scans, then a scan of the warps'
// totals.
template <class T>
__device__ inline T block_prefix(T x, T* scratch, T& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T below = __shfl_up_sync(0xffffffffu, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    T sum = scratch[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const T below = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += below;
    }
    scratch[lane] = sum;
  }
  __syncthreads();
  total = scratch[kWarps - 1];
  const T before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  return (warp == 0 ? T{0} : scratch[warp - 1]) + (lane == 0 ? T{0} : before);
}

__device__ inline int block_min(int x, int* scratch) {
  x = __reduce_min_sync(0xffffffffu, x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return __reduce_min_sync(0xffffffffu, scratch[threadIdx.x % 32]);
}

// The half of the values that a block counts, by position in descending order.
struct Half {
  bool negative;
  __device__ uint32_t bits(int position) const {
    return negative ? 0x8000u | position : kMagnitude - position;
  }
  __device__ float value(int position) const { return __uint_as_float(bits(position) << 16); }
  __device__ uint32_t key(int position) const {
    return negative ? kMagnitude - position : 0x8000u + (kMagnitude - position);
  }
};

__device__ inline int counter_at(int position) {
  return position + position / kRun;
}

__device__ inline void count_row(const LogitsView& v, int64_t t, bool negative, uint32_t* counter) {
  const bf16* x = v.x + t * v.ld;
  const int real = static_cast<int>(min(v.vocab, v.slices * v.slice_rows));
  const uint32_t flip = negative ? 0 : kMagnitude;
  const auto count = [&](uint32_t bits) {
    if ((bits > 0x8000u) == negative)
      atomicAdd(&counter[counter_at((bits & kMagnitude) ^ flip)], 1u);
  };
  constexpr int kBatch = 4;  // loads in flight a thread
  for (int first = threadIdx.x * 8; first < real; first += kThreads * 8 * kBatch) {
    Bf16x8 batch[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int c = first + b * kThreads * 8;
      if (c < real) batch[b] = load_vec<Bf16x8>(x + c);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int left = real - (first + b * kThreads * 8);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t pair = batch[b].pair[i / 2];
        if (i < left) count(i % 2 == 0 ? pair & 0xffffu : pair >> 16);
      }
    }
  }
}

// Whether this thread's share of every second stretch of the row, from stretch `rank` on, holds a
// NaN.
__device__ inline bool has_nan(const LogitsView& v, int64_t t, int rank) {
  const bf16* x = v.x + t * v.ld;
  const int real = static_cast<int>(min(v.vocab, v.slices * v.slice_rows));
  bool nan = false;
#pragma unroll 4
  for (int c = (rank * kThreads + threadIdx.x) * 8; c < real; c += 2 * kThreads * 8) {
    const Bf16x8 vector = load_vec<Bf16x8>(x + c);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = vector.pair[i / 2] >> (i % 2 * 16);
      nan |= (bits & kMagnitude) > kInfBits && c + i < real;
    }
  }
  return nan;
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads)
    support_kernel(SupportArgs a) {
  extern __shared__ uint32_t counter[];
  __shared__ Exchange shared;
  __shared__ uint32_t scratch_count[kWarps];
  __shared__ double scratch_mass[kWarps];
  __shared__ int scratch_min[kWarps];
  grid_launch_dependents();
  grid_dependency_wait();
  const int64_t t = blockIdx.x / 2;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const Half half{rank == 1};
  const int top_k = a.top_k[t];
  const float top_p = a.top_p[t];
  const bool cut_count = top_k > 0 && top_k < a.logits.vocab, cut_mass = top_p < 1.0f;
  if (!cut_count && !cut_mass) {
    if (has_nan(a.logits, t, rank)) atomicOr(a.error, 1);
    if (rank == 0 && threadIdx.x == 0) a.threshold[t] = 0;
    return;
  }
  // Both blocks have started before either writes to the other: the wait is at the first exchange.
  auto started = cluster.barrier_arrive();
  Exchange* other = cluster.map_shared_rank(&shared, 1 - rank);

  for (int i = threadIdx.x; i < kThreads * kStride; i += kThreads) counter[i] = 0;
  __syncthreads();
  count_row(a.logits, t, half.negative, counter);
  __syncthreads();

  // Counts: the thread's, before it, of the half, of the row.
  const int position0 = threadIdx.x * kRun;
  uint32_t count = 0;
  int first = kNone;
  bool nan = false;
#pragma unroll 8
  for (int j = kRun - 1; j >= 0; --j) {
    const uint32_t n = counter[threadIdx.x * kStride + j];
    if (n == 0) continue;
    if ((half.bits(position0 + j) & kMagnitude) > kInfBits) {
      nan = true;
      counter[threadIdx.x * kStride + j] = 0;
      continue;
    }
    count += n;
    first = position0 + j;
  }
  if (nan) atomicOr(a.error, 1);
  uint32_t half_count;
  const uint32_t before = block_prefix(count, scratch_count, half_count);
  first = block_min(first, scratch_min);
  cluster.barrier_wait(std::move(started));
  if (threadIdx.x == 0) {
    shared.count[rank] = other->count[rank] = half_count;
    shared.first[rank] = other->first[rank] = first;
    shared.kth_key = 0;
    shared.found = kNone;
  }
  cluster.sync();
  const uint32_t all = shared.count[0] + shared.count[1];
  const int top = shared.first[0] != kNone ? shared.first[0] : shared.first[1];
  const float max = Half{shared.first[0] == kNone}.value(top);

  if (cut_count) {
    const uint32_t k = min(static_cast<uint32_t>(top_k), all);
    uint32_t seen = before + (rank == 1 ? shared.count[0] : 0);
    if (seen < k && k <= seen + count) {
      int j = -1;
      while (seen < k) seen += counter[threadIdx.x * kStride + ++j];
      const uint32_t key = half.key(position0 + j);
      shared.kth_key = other->kth_key = key;
      if (!cut_mass) a.threshold[t] = key;
    }
    cluster.sync();
    if (!cut_mass) return;
  }

  const uint32_t floor_key = shared.kth_key;
  const float inv_temp = a.inv_temp[t];
  const auto mass_at = [&](int j) {
    const uint32_t n = counter[threadIdx.x * kStride + j];
    if (n == 0 || half.key(position0 + j) < floor_key) return 0.0;
    return static_cast<double>(n) *
           static_cast<double>(expf((half.value(position0 + j) - max) * inv_temp));
  };
  double mass = 0;
  if (count > 0) {
    for (int j = 0; j < kRun; ++j) mass += mass_at(j);
  }
  double half_mass;
  double reached = block_prefix(mass, scratch_mass, half_mass);
  if (threadIdx.x == 0) shared.mass[rank] = other->mass[rank] = half_mass;
  cluster.sync();
  const double goal = static_cast<double>(top_p) * (shared.mass[0] + shared.mass[1]);
  if (rank == 1) reached += shared.mass[0];
  const int candidate = mass > 0 && reached + mass >= goal ? static_cast<int>(threadIdx.x) : kNone;
  __syncthreads();  // scratch_min is free again
  const int winner = block_min(candidate, scratch_min);
  if (rank == 0 && threadIdx.x == 0) other->found = winner;
  cluster.sync();
  if (rank == 1 && shared.found != kNone) return;  // reached among the larger values
  if (winner == kNone) {                           // this half does not reach the goal
    if (rank == 1 && threadIdx.x == 0) a.threshold[t] = floor_key;
    return;
  }
  if (static_cast<int>(threadIdx.x) != winner) return;
  int last = -1;  // at least one value: the prefix may round to the goal
  for (int j = 0; j < kRun && (last < 0 || reached < goal); ++j) {
    const double more = mass_at(j);
    if (more > 0) last = j;
    reached += more;
  }
  a.threshold[t] = half.key(position0 + last);
}

}  // namespace

size_t support_workspace(const SupportArgs&) {
  return 0;
}

void logits_support(Stream stream, const SupportArgs& a) {
  const LogitsView& v = a.logits;
  if (v.T == 0) return;
  require(v.slices == kSlices && v.first_slice == 0, "logits_support", "needs whole rows");
  require(v.slice_rows % 8 == 0 && v.ld % 8 == 0 && aligned(v.x), "logits_support",
          "slice_rows and ld must be multiples of 8, the logits 16-byte aligned");
  launch("logits_support",
         {.grid = blocks_for(v.T * 2, 1),
          .block = kThreads,
          .shared_bytes = kCounterBytes,
          .dependent = true,
          .stream = stream_of(stream)},
         support_kernel, a);
}

}  // namespace rlk::cuda
