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
void decode(Stream stream, const AttentionArgs& args);
size_t decode_workspace(const AttentionArgs& args);
void backward_dq(Stream stream, const AttentionBwdArgs& args);
void backward_dkv(Stream stream, const AttentionBwdArgs& args);

}  // namespace rlk::cuda::attn
