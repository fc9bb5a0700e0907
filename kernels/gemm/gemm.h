#pragma once
// The two paths of gemm, for tests and benchmarks that need one of them: cuda::gemm
// (kernels/launchers.h) picks by T alone, and both give the same bits. Host, any thread.

#include "rlk/device/ops.h"

namespace rlk::cuda {

// How the few-token path cuts the work: weight rows a CTA takes at a time, CTAs that share a tile's
// slices. Speed only: the bits do not depend on it.
struct DecodePlan {
  int rows;     // 8, 16, 24, 32, 48, 64, 96
  int cluster;  // 1, 2, 4, 8; divides slices and rows / 8
};

DecodePlan decode_plan(const GemmArgs&);
void gemm_decode(Stream, const GemmArgs&, const DecodePlan&);  // T <= 64
void gemm_tiles(Stream, const GemmArgs&);                      // any T

}  // namespace rlk::cuda
