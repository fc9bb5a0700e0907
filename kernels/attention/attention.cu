// The attention ops of the table: checks, choice of kernel, and attention_delta.

#include <string>

#include "kernels/attention/launchers.h"
#include "kernels/attention/work_list.h"
#include "kernels/common/grid.h"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

std::string text(const char* name, int64_t value, const char* must) {
  return std::string(name) + " = " + std::to_string(value) + ", must be " + must;
}

void check_heads(const char* op, int H, int KH, int Dh) {
  require(Dh == 64 || Dh == 128, op, text("Dh", Dh, "64 or 128"));
  require(KH > 0 && H % KH == 0, op, text("H", H, "a multiple of KH"));
  require(H / KH <= 8, op, text("H/KH", H / KH, "at most 8"));
}

// TMA needs 16-byte strides and addresses.
void check_cache(const char* op, const KvCache& c) {
  require(c.page_stride % 8 == 0, op, text("page_stride", c.page_stride, "a multiple of 8"));
  require(c.token_stride % 8 == 0, op, text("token_stride", c.token_stride, "a multiple of 8"));
  require(c.head_stride % 8 == 0, op, text("head_stride", c.head_stride, "a multiple of 8"));
  require(c.k[0] != nullptr, op, "k[0] is null");
  for (int s = 0; s < kSlices; ++s)
    require(aligned(c.k[s]) && aligned(c.v[s]), op, "k and v must be 16-byte aligned");
}

// ---- attention_delta -------------------------------------------------------------------------

constexpr int kDeltaThreads = 256;

// Dh/8 lanes a (row, head), eight products each in one fma chain, then the xor tree from the widest
// distance down.
template <int Dh>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(const AttentionDeltaArgs a) {
  constexpr int kLanes = Dh / 8;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t rows = a.T * a.H;
  float sum = 0.0f;
  if (i < rows) {
    float x[8], y[8];
    unpack(load_vec<Bf16x8>(a.o + i * Dh + lane * 8), x);
    unpack(load_vec<Bf16x8>(a.d_o + i * Dh + lane * 8), y);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = __fmaf_rn(x[k], y[k], sum);
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
  if (i < rows && lane == 0) a.delta[i] = sum;
}

}  // namespace

namespace {

void check_attention(const AttentionArgs& a) {
  constexpr const char* kOp = "attention";
  check_heads(kOp, a.H, a.KH, a.Dh);
  check_cache(kOp, a.cache);
  require(aligned(a.q) && aligned(a.o) && aligned(a.workspace), kOp,
          "q, o and workspace must be 16-byte aligned");
  require(a.max_len > 0 && a.max_context > 0, kOp, "max_len and max_context must be positive");
}

size_t workspace(const AttentionArgs& a, int split_shift) {
  return a.max_len == 1 ? attn::decode_workspace(a, split_shift)
                        : attn::work_list_bytes(a.T, a.n_segments);
}

void run_attention(Stream stream, const AttentionArgs& a, int split_shift) {
  if (a.T == 0 || a.n_segments == 0) return;
  check_attention(a);
  a.max_len == 1 ? attn::decode(stream, a, split_shift) : attn::prefill(stream, a);
}

}  // namespace

// Decode where every segment is one query, else the blocked kernel: the same bits
// (kernels/attention/rule.cuh).
void attention(Stream stream, const AttentionArgs& a) {
  run_attention(stream, a, attn::kSplitShift);
}

size_t attention_workspace(const AttentionArgs& a) {
  return workspace(a, attn::kSplitShift);
}

void native_attention(Stream stream, const AttentionArgs& a) {
  run_attention(stream, a, attn::native_split_shift(a));
}

size_t native_attention_workspace(const AttentionArgs& a) {
  return workspace(a, attn::native_split_shift(a));
}

void attention_delta(Stream stream, const AttentionDeltaArgs& a) {
  if (a.T == 0) return;
  require(a.Dh == 64 || a.Dh == 128, "attention_delta", text("Dh", a.Dh, "64 or 128"));
  require(aligned(a.o) && aligned(a.d_o), "attention_delta", "o and d_o must be 16-byte aligned");
  const unsigned blocks = blocks_for(a.T * a.H * (a.Dh / 8), kDeltaThreads);
  if (a.Dh == 128)
    delta_kernel<128><<<blocks, kDeltaThreads, 0, stream_of(stream)>>>(a);
  else
    delta_kernel<64><<<blocks, kDeltaThreads, 0, stream_of(stream)>>>(a);
  check_launch("attention_delta");
}

void attention_bwd_dq(Stream stream, const AttentionBwdArgs& a) {
  constexpr const char* kOp = "attention_bwd_dq";
  if (a.S == 0 || a.n_segments == 0) return;
  check_heads(kOp, a.H, a.KH, a.Dh);
  require(aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.d_o) && aligned(a.dq) &&
              aligned(a.workspace),
          kOp, "q, k, v, d_o, dq and workspace must be 16-byte aligned");
  attn::backward_dq(stream, a);
}

void attention_bwd_dkv(Stream stream, const AttentionBwdArgs& a) {
  constexpr const char* kOp = "attention_bwd_dkv";
  if (a.S == 0 || a.n_segments == 0) return;
  check_heads(kOp, a.H, a.KH, a.Dh);
  require(aligned(a.q) && aligned(a.k) && aligned(a.v) && aligned(a.d_o) && aligned(a.dk) &&
              aligned(a.dv) && aligned(a.workspace),
          kOp, "q, k, v, d_o, dk, dv and workspace must be 16-byte aligned");
  attn::backward_dkv(stream, a);
}

size_t attention_bwd_workspace(const AttentionBwdArgs& a) {
  return attn::work_list_bytes(a.S, a.n_segments);
}

}  // namespace rlk::cuda
