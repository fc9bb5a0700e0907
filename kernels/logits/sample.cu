// sample: a cluster of 8 blocks a row, each over an eighth of the row's columns. A token's score
// depends on its own logit and counter alone and ties go to the lower id, so the partition cannot
// change the result. Nor can skipping the two logarithms of a token whose cheap upper bound stays
// below a score that the warp has seen: after the first few tokens that is nearly all of them.

#include <cooperative_groups.h>

#include <utility>

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/math.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/launchers.h"
#include "kernels/logits/logits.cuh"

namespace rlk::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kBlocks = 8;  // of a cluster
constexpr int32_t kNoToken = 0x7fffffff;

__device__ inline Candidate better(Candidate a, Candidate b) {
  return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

// Largest of the warp's scores: as integers ordered like the floats, in one instruction.
__device__ inline float warp_top(float score) {
  const int bits = __float_as_int(score);
  const int top = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
  return __int_as_float(top ^ (top >> 31 & 0x7fffffff));
}

__device__ inline Candidate warp_best(Candidate best) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Candidate other{__shfl_xor_sync(0xffffffffu, best.score, step),
                          __shfl_xor_sync(0xffffffffu, best.token, step)};
    best = better(best, other);
  }
  return best;
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads)
    sample_kernel(SampleArgs a) {
  __shared__ Candidate warps[kThreads / 32];
  __shared__ Candidate blocks[kBlocks];  // of the cluster's first block
  grid_launch_dependents();
  grid_dependency_wait();
  cg::cluster_group cluster = cg::this_cluster();
  auto started = cluster.barrier_arrive();  // waited for before the write into another block
  const LogitsView& v = a.logits;
  const int64_t t = blockIdx.x / kBlocks;
  const int part = blockIdx.x % kBlocks;
  const int64_t base = v.first_slice * v.slice_rows;
  const int width = static_cast<int>(v.slices * v.slice_rows);
  const int real = static_cast<int>(min(max(v.vocab - base, int64_t{0}), int64_t{width}));
  const int vectors = (real + 7) / 8, share = (vectors + kBlocks - 1) / kBlocks;
  const int last = min((part + 1) * share, vectors);
  const float inv_temp = a.inv_temp[t], threshold = row_threshold(a.threshold, t);
  const SampleKey key = a.keys[t];
  const bf16* x = v.x + t * v.ld;

  Candidate best{kMinusInf, kNoToken};
  float seen = kMinusInf;  // the warp's best score
  const int first = part * share;
  // Whole warps stay in the loop: they share `seen`.
  for (int base_vector = first + threadIdx.x / 32 * 32; base_vector < last;
       base_vector += kThreads) {
    const int vector = base_vector + threadIdx.x % 32;
    const bool active = vector < last;
    float value[8];
    unpack(load_vec<Bf16x8>(x + (active ? vector : first) * 8), value);
    const int32_t id = static_cast<int32_t>(base) + vector * 8;
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {
      PhiloxBlock bits{};
      if (inv_temp != 0.0f) bits = sample_block(key, id / 4 + quad);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float logit = value[quad * 4 + i];
        if (!active || logit < threshold || vector * 8 + quad * 4 + i >= real) continue;
        float score = logit;
        if (inv_temp != 0.0f) {
          score = logit * inv_temp;
          const float slack = fmaf(fabsf(score), 1e-5f, 1e-3f);
          if (score + gumbel_bound(bits.word[i]) + slack < seen) continue;
          score += gumbel(bits.word[i]);
        }
        best = better(best, {score, id + quad * 4 + i});
      }
      seen = warp_top(best.score);
    }
  }

  best = warp_best(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  cluster.barrier_wait(std::move(started));
  if (threadIdx.x < 32) {
    best = threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : Candidate{kMinusInf, kNoToken};
    best = warp_best(best);
    if (threadIdx.x == 0) cluster.map_shared_rank(blocks, 0)[part] = best;
  }
  cluster.sync();
  if (part != 0 || threadIdx.x != 0) return;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) best = better(best, blocks[b]);
  a.best[t] = best;
}

__global__ void __launch_bounds__(256) sample_merge_kernel(SampleMergeArgs a) {
  grid_launch_dependents();
  grid_dependency_wait();
  const int64_t t = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (t >= a.T) return;
  Candidate best = a.best[t];
  for (int r = 1; r < a.ranks; ++r) best = better(best, a.best[r * a.T + t]);
  a.token[t] = best.token;
}

}  // namespace

size_t sample_workspace(const SampleArgs&) {
  return 0;
}

void sample(Stream stream, const SampleArgs& a) {
  const LogitsView& v = a.logits;
  if (v.T == 0) return;
  require(v.slice_rows % 8 == 0 && v.ld % 8 == 0 && aligned(v.x), "sample",
          "slice_rows and ld must be multiples of 8, the logits 16-byte aligned");
  launch_dependent("sample", stream, blocks_for(v.T * kBlocks, 1), kThreads, sample_kernel, a);
}

void sample_merge(Stream stream, const SampleMergeArgs& a) {
  if (a.T == 0) return;
  launch_dependent("sample_merge", stream, blocks_for(a.T, 256), 256, sample_merge_kernel, a);
}

}  // namespace rlk::cuda
