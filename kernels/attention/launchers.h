#pragma once
// The attention ops' kernels, one launcher each; attention.cu checks arguments and chooses. Host,
// any thread.

#include "rlk/device/ops.h"

namespace rlk::cuda::attn {

// softmax(scale * s) in exp2 units. Rounded once from double: forward and backward must agree on
// it.
inline float exp2_scale(float scale) {
  return static_cast<float>(static_cast<double>(scale) * 1.4426950408889634);
}

void prefill(Stream stream, const AttentionArgs& args);
// split_shift: log2 of a split's keys. kSplitShift is the rule; others are native mode's.
inline constexpr int kTileShift = 7, kSplitShift = 10;
int native_split_shift(const AttentionArgs& args);
void decode(Stream stream, const AttentionArgs& args, int split_shift);
size_t decode_workspace(const AttentionArgs& args, int split_shift);
void backward_dq(Stream stream, const AttentionBwdArgs& args);
void backward_dkv(Stream stream, const AttentionBwdArgs& args);

}  // namespace rlk::cuda::attn
