#pragma once
// The two paths of gemm, for tests and benchmarks that need one of them: cuda::gemm
// (kernels/launchers.h) picks by T alone, and both give the same bits. Host, any thread.

#include "rlk/device/ops.h"

namespace rlk::cuda {

// The few-token path takes `rows` weight rows of a CTA at a time: one of kDecodeRows. Speed only:
// the bits do not depend on it.
inline constexpr int kDecodeRows[] = {8, 16, 24, 32, 40, 48, 64};

int decode_rows(const GemmArgs&);                     // the choice of cuda::gemm
void gemm_decode(Stream, const GemmArgs&, int rows);  // T <= 64
void gemm_tiles(Stream, const GemmArgs&);             // any T

// gemm_swiglu in one kernel, with half of `rows` gates and their ups in a CTA's tile.
inline constexpr int kGatedRows[] = {16, 32, 48, 64};
int gated_rows(const GemmSwigluArgs&);  // the choice of cuda::gemm_swiglu
void gemm_swiglu_decode(Stream, const GemmSwigluArgs&, int rows);  // T <= 64

}  // namespace rlk::cuda
