// One CTA: counts the blocks of every length, scans, writes each block to its place (a counting
// sort, longest first).

#include "kernels/attention/work_list.h"
#include "kernels/common/check.h"
#include "kernels/common/ptx.cuh"

namespace rlk::cuda::attn {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 1024;  // lengths; longer blocks share the first bin
constexpr int64_t kL2Share = int64_t{24}
                             << 20;  // bytes of the 50 MB L2 (two halves of 25) worth counting on

// f(block, tiles) for the blocks of a segment, one a lane.
template <class F>
__device__ void for_blocks(const AttentionSegment& s, int sequence_end, F f) {
  if (s.len <= 0) return;
  const int end = s.position + s.len;
  const int first = s.position / kBlock, last = (end - 1) / kBlock;
  for (int i = first + lane_id(); i <= last; i += 32) {
    const int from = max(s.position, i * kBlock), to = min(end, (i + 1) * kBlock);
    const AttentionSegment block{s.seq, from, to - from, s.row + (from - s.position)};
    f(block, sequence_end > 0 ? (sequence_end - 1) / kBlock - i + 1 : i + 1);
  }
}

__global__ void __launch_bounds__(kThreads)
    work_list_kernel(const WorkListArgs a, const WorkList list) {
  __shared__ int start[kBins];
  __shared__ int warp_sum[kWarps];
  __shared__ unsigned long long positions;
  grid_launch_dependents();
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = lane_id();
  start[t] = 0;
  if (t == 0) positions = 0;
  __syncthreads();

  const auto each = [&](auto f) {
    for (int i = warp; i < a.n_segments; i += kWarps) {
      const AttentionSegment s = a.segments[i];
      const int sequence_end =
          a.order == WorkOrder::queries ? a.seq_begin[s.seq + 1] - a.seq_begin[s.seq] : 0;
      f(s, sequence_end);
    }
  };
  const auto bin = [](int tiles) { return kBins - min(tiles, kBins); };
  each([&](const AttentionSegment& s, int end) {
    for_blocks(s, end,
               [&](const AttentionSegment&, int tiles) { atomicAdd(&start[bin(tiles)], 1); });
    const int context = a.order == WorkOrder::queries ? end : s.position + s.len;
    if (lane == 0 && s.len > 0) atomicAdd(&positions, static_cast<unsigned long long>(context));
  });
  __syncthreads();

  // Exclusive scan of the counts.
  const int count = start[t];
  int sum = count;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  int before = 0;
  for (int w = 0; w < warp; ++w) before += warp_sum[w];
  start[t] = before + sum - count;
  if (t == kThreads - 1) {
    const int64_t bytes = static_cast<int64_t>(positions) * a.bytes_per_position;
    const int64_t groups =
        min(static_cast<int64_t>(a.KH), max(int64_t{1}, (bytes * a.KH + kL2Share - 1) / kL2Share));
    *list.header = {before + sum, 0, static_cast<int>((a.KH + groups - 1) / groups), 0};
  }
  __syncthreads();

  each([&](const AttentionSegment& s, int end) {
    for_blocks(s, end, [&](const AttentionSegment& block, int tiles) {
      list.block[atomicAdd(&start[bin(tiles)], 1)] = block;
    });
  });
}

static_assert(kBins == kThreads && kWarps == 32);
static_assert(sizeof(WorkHeader) == 16 && sizeof(AttentionSegment) == 16);

}  // namespace

// A segment touches at most len/128 + 2 blocks.
size_t work_list_bytes(int64_t T, int32_t n_segments) {
  return sizeof(WorkHeader) +
         static_cast<size_t>(T / kBlock + 2 * int64_t{n_segments}) * sizeof(AttentionSegment);
}

WorkList work_list_at(void* workspace) {
  auto* header = static_cast<WorkHeader*>(workspace);
  return {header, reinterpret_cast<AttentionSegment*>(header + 1)};
}

void make_work_list(Stream stream, const WorkListArgs& args, const WorkList& list) {
  work_list_kernel<<<1, kThreads, 0, stream_of(stream)>>>(args, list);
  check_launch("attention work list");
}

}  // namespace rlk::cuda::attn
