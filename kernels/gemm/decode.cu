// Few-token gemm: picks the tile and launches kernels/gemm/decode.cuh.

#include <algorithm>
#include <initializer_list>

#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map.h"
#include "kernels/gemm/decode.cuh"
#include "kernels/gemm/gemm.h"

namespace rlk::cuda {
namespace {

using Kernel = void (*)(CUtensorMap, CUtensorMap, DecodeShape, void*, bool);

Kernel kernel_for(int rows) {
  switch (rows) {
    case 8:
      return decode::kernel<8, false>;
    case 16:
      return decode::kernel<16, false>;
    case 24:
      return decode::kernel<24, false>;
    case 32:
      return decode::kernel<32, false>;
    case 40:
      return decode::kernel<40, false>;
    case 48:
      return decode::kernel<48, false>;
    case 64:
      return decode::kernel<64, false>;
    default:
      throw Error("gemm: no decode kernel of " + std::to_string(rows) + " rows");
  }
}

Kernel gated_kernel_for(int rows) {
  switch (rows) {
    case 16:
      return decode::kernel<16, true>;
    case 32:
      return decode::kernel<32, true>;
    case 48:
      return decode::kernel<48, true>;
    case 64:
      return decode::kernel<64, true>;
    default:
      throw Error("gemm_swiglu: no decode kernel of " + std::to_string(rows) + " rows");
  }
}

// Rates in bytes a microsecond: of the device, weights alone and with activations; of one SM,
// weights alone (half of it where its neighbour in the TPC streams too) and with activations. A
// step of the chains, a round and a CTA have a price each, in microseconds.
constexpr double kDevice = 4.3e6, kDeviceBoth = 12.5e6, kSm = 41.5e3, kSmPaired = 21.6e3,
                 kSmBoth = 73.4e3;
constexpr double kStep = 0.117, kRound = 0.75, kCta = 0.004;

double row_bytes(const GemmArgs& a) {
  return static_cast<double>(a.ks) * a.slices * sizeof(bf16);
}
double steps_of(const GemmArgs& a) {
  return static_cast<double>(ceil_div(a.ks, decode::kStageBlocks * 64)) * a.slices;
}

// Microseconds with tiles of `rows`, full rounds of CTAs and then what is left over. Fitted to
// 972 timings on an H200 (five layers of Qwen3-8B, whole and cut by 2, 4, 8; T = 1, 8, 16, 64): its
// choices are 1.3 % off the best tile on average.
double cost(int rows, const GemmArgs& a) {
  const double k_bytes = row_bytes(a), weights = rows * k_bytes;
  const double both = weights + static_cast<double>(a.T) * k_bytes, steps = steps_of(a);
  const int64_t tiles = ceil_div(a.N, rows), sms = sm_count();
  const auto round = [&](int64_t ctas) {
    const auto n = static_cast<double>(ctas);
    const double slowest =
        std::max({n * weights / kDevice, n * both / kDeviceBoth,
                  weights / (ctas > sms / 2 ? kSmPaired : kSm), both / kSmBoth, steps * kStep});
    return slowest + kRound + n * kCta;
  };
  const int64_t rest = tiles % sms;
  return static_cast<double>(tiles / sms) * round(sms) + (rest > 0 ? round(rest) : 0.0);
}

// The same for many rounds and few tokens: the rings stay full from tile to tile, a tile has no
// price of its own, and the rows of the busiest SM decide. The logits of Qwen3-8B at T = 8 take
// 299 us in tiles of 64 rows, 18.06 rounds, and 295 in tiles of 40, 28.9 rounds.
double long_cost(int rows, const GemmArgs& a) {
  const int64_t sms = sm_count(), rounds = ceil_div(ceil_div(a.N, rows), sms);
  return static_cast<double>(rounds) *
         std::max(static_cast<double>(sms) * rows * row_bytes(a) / kDevice, steps_of(a) * kStep);
}

// [slices][rows][ks]: slices are a dimension of their own, so that a slice's last block is
// zero-filled. The innermost dimension is a whole slice, not one block: TMA then asks L2 for 256
// bytes of a row at a time.
CUtensorMap operand(const char* name, const bf16* p, const GemmArgs& a, int64_t rows, int64_t ld,
                    int box_rows, int64_t slice) {
  return tensor_map(name, p, TmaType::bf16,
                    {{a.ks, 1, 64}, {rows, ld, box_rows}, {a.slices, slice, 1}});
}

// What both kinds of tiles share; `shape` lacks rows, tiles and ldy.
DecodeShape shape_of(const GemmArgs& a, int rows) {
  require(a.T <= decode::kMaxTokens, "gemm", "decode takes at most 64 tokens");
  DecodeShape shape{};
  shape.tokens = static_cast<int>(a.T);
  shape.token_rows = static_cast<int>(ceil_div(a.T, 8) * 8);
  shape.halves = a.slices > 1 ? 2 : 1;
  shape.slices = a.slices / shape.halves;
  shape.slice_steps = static_cast<int>(ceil_div(a.ks, decode::kStageBlocks * 64));
  shape.weights_ready = a.w_ready;
  const int stage_bytes = decode::weight_bytes(rows) + decode::token_bytes(shape.token_rows);
  const int free_bytes = static_cast<int>(kMaxSharedBytes) - 1024 /* alignment */ -
                         8192 /* padding */ - decode::exchange_bytes(rows) - 8;
  shape.stage_count = free_bytes / (stage_bytes + 2 * 8) / 2 * 2;
  return shape;
}

// Tiles of 64 rows, or of `smaller`, which must be worth it: the fit is that good.
int cheapest(double (*price)(int rows, const GemmArgs&), std::initializer_list<int> smaller,
             const GemmArgs& a) {
  int best = 64;
  for (const int rows : smaller)
    if (price(rows, a) < 0.985 * price(best, a)) best = rows;
  return best;
}

void launch_decode(const char* op, Stream stream, Kernel kernel, const GemmArgs& a,
                   const DecodeShape& shape, const CUtensorMap& w, void* y) {
  const CUtensorMap x = operand("gemm x", a.x, a, a.T, a.ldx, shape.tokens, a.ks);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min<int64_t>(shape.tiles, sm_count())));
  l.block = dim3(decode::kThreads);
  l.shared_bytes = kMaxSharedBytes;  // also where fewer stages would do: exactly one CTA an SM
  l.dependent = true;
  l.stream = stream_of(stream);
  launch(op, l, kernel, x, w, shape, y, a.out_f32);
}

}  // namespace

int decode_rows(const GemmArgs& a) {
  const bool is_long = a.T <= 16 && a.N >= 16 * 64 * int64_t{sm_count()};
  return cheapest(is_long ? long_cost : cost, {48, 40, 32, 24, 16, 8}, a);
}

void gemm_decode(Stream stream, const GemmArgs& a, int rows) {
  DecodeShape shape = shape_of(a, rows);
  shape.rows = static_cast<int>(a.N);
  shape.tiles = static_cast<int>(ceil_div(a.N, rows));
  shape.ldy = a.ldy;
  launch_decode("gemm", stream, kernel_for(rows), a, shape,
                operand("gemm w", a.w, a, a.N, a.ldw, rows, a.w_slice), a.y);
}

int gated_rows(const GemmSwigluArgs& a) {
  return cheapest(cost, {48, 32, 16}, a.gemm);
}

void gemm_swiglu_decode(Stream stream, const GemmSwigluArgs& a, int rows) {
  const GemmArgs& g = a.gemm;
  DecodeShape shape = shape_of(g, rows);
  shape.rows = static_cast<int>(a.fs);
  shape.slice_tiles = static_cast<int>(ceil_div(a.fs, rows / 2));
  shape.tiles = a.slices * shape.slice_tiles;
  shape.ldy = a.slices * a.fs;
  // A box: the gate rows and the up rows of the same columns. Columns past fs are zero-filled.
  const CUtensorMap w = tensor_map("gemm_swiglu w", g.w, TmaType::bf16,
                                   {{g.ks, 1, 64},
                                    {a.fs, g.ldw, rows / 2},
                                    {2, a.fs * g.ldw, 2},
                                    {a.slices, 2 * a.fs * g.ldw, 1},
                                    {g.slices, g.w_slice, 1}});
  launch_decode("gemm_swiglu", stream, gated_kernel_for(rows), g, shape, w, a.act);
}

}  // namespace rlk::cuda
