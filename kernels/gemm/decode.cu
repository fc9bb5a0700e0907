// Few-token gemm: picks how to cut the work and launches kernels/gemm/decode.cuh.

#include <algorithm>
#include <array>

#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/gemm/decode.cuh"
#include "kernels/gemm/gemm.h"

namespace rlk::cuda {
namespace {

constexpr std::array kRowChoices = {8, 16, 24, 32, 48, 64, 96};
constexpr std::array kClusterChoices = {1, 2, 4, 8};

using Kernel = void (*)(CUtensorMap, CUtensorMap, DecodeShape, void*, bool, int);

Kernel kernel_for(int rows) {
  switch (rows) {
    case 8:
      return decode::kernel<8>;
    case 16:
      return decode::kernel<16>;
    case 24:
      return decode::kernel<24>;
    case 32:
      return decode::kernel<32>;
    case 48:
      return decode::kernel<48>;
    case 64:
      return decode::kernel<64>;
    case 96:
      return decode::kernel<96>;
    default:
      throw Error("gemm: no decode kernel of " + std::to_string(rows) + " rows");
  }
}

bool fits(const DecodePlan& plan, int slices) {
  return slices % plan.cluster == 0 && plan.rows / 8 % plan.cluster == 0;
}

// Microseconds of a plan, from what an H200 showed (docs/numerics.md has no part in it: speed
// only). A kernel streams its weights at 4.2 MB/us at best; two SMs of a TPC that both stream take
// turns at 78 KB/us of weights; activations come from L2 at about a third of that cost. Clusters of
// 4 and 8 leave SMs idle.
double cost(const DecodePlan& plan, const GemmArgs& a) {
  const int sms = sm_count();
  const double k = static_cast<double>(a.ks) * a.slices * sizeof(bf16);
  const double weights = static_cast<double>(a.N) * k;
  const int64_t tiles = ceil_div(a.N, plan.rows);
  const int64_t slots = plan.cluster <= 2 ? sms / plan.cluster : sms * 10 / 11 / plan.cluster;
  const int64_t rounds = ceil_div(tiles, slots);
  const int64_t ctas = std::min(tiles, slots) * plan.cluster;
  const double per_tpc = ctas > sms / 2 ? 2.0 : 1.0;
  const double share = static_cast<double>(rounds) * k / plan.cluster * per_tpc;
  const double stream = share * plan.rows / 78e3 + share * static_cast<double>(a.T) / 250e3;
  const double exchange = plan.cluster > 1 ? 0.5 : 0.0;
  return std::max(weights / 4.2e6, stream) + exchange;
}

}  // namespace

DecodePlan decode_plan(const GemmArgs& a) {
  DecodePlan best{};
  double best_cost = 0;
  for (const int cluster : kClusterChoices)
    for (const int rows : kRowChoices) {
      const DecodePlan plan{rows, cluster};
      if (!fits(plan, a.slices)) continue;
      const double c = cost(plan, a);
      if (best.rows == 0 || c < best_cost) best = plan, best_cost = c;
    }
  return best;
}

void gemm_decode(Stream stream, const GemmArgs& a, const DecodePlan& plan) {
  require(a.T <= decode::kMaxTokens, "gemm", "decode takes at most 64 tokens");
  require(fits(plan, a.slices), "gemm", "decode plan does not divide the slices");
  constexpr int kStep = decode::kStageBlocks * 64;
  DecodeShape shape{};
  shape.tokens = static_cast<int>(a.T);
  shape.token_rows = static_cast<int>(ceil_div(a.T, 8) * 8);
  shape.rows = static_cast<int>(a.N);
  shape.slices = a.slices;
  shape.slice_steps = static_cast<int>(ceil_div(a.ks, kStep));
  shape.ldy = a.ldy;
  shape.weights_ready = a.w_ready;

  const int stage_bytes = decode::weight_bytes(plan.rows) + decode::token_bytes(shape.token_rows);
  const int tail = plan.cluster > 1 ? std::max(8192, decode::exchange_bytes(plan.rows)) : 8192;
  constexpr int kFixed = 1024 + 8;  // alignment; the exchange's barrier
  shape.stage_count = (static_cast<int>(kMaxSharedBytes) - kFixed - tail) / (stage_bytes + 2 * 8);
  const int64_t tiles = ceil_div(a.N, plan.rows);
  const int64_t clusters = plan.cluster > 1 ? tiles : std::min<int64_t>(tiles, sm_count());

  const CUtensorMap x =
      tensor_map("gemm x", a.x, TmaType::bf16,
                 {{a.ks, 1, 64}, {a.T, a.ldx, shape.token_rows}, {a.slices, a.ks, 1}});
  const CUtensorMap w =
      tensor_map("gemm w", a.w, TmaType::bf16,
                 {{a.ks, 1, 64}, {a.N, a.ldw, plan.rows}, {a.slices, a.w_slice, 1}});
  Launch l;
  l.grid = dim3(static_cast<unsigned>(clusters * plan.cluster));
  l.block = dim3(decode::kThreads);
  // All of it, also where fewer stages would do: exactly one CTA an SM.
  l.shared_bytes = kMaxSharedBytes;
  l.cluster = plan.cluster;
  l.dependent = true;
  l.stream = stream_of(stream);
  launch("gemm", l, kernel_for(plan.rows), x, w, shape, a.y, a.out_f32, plan.cluster);
}

}  // namespace rlk::cuda
