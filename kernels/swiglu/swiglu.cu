// swiglu and its backward: elementwise, eight columns a thread.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/launch.h"
#include "kernels/common/math.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 256;

// Thread -> (row, slice, column): grid x is the row, grid y covers the columns of all slices.
struct Place {
  int64_t gate, act;  // offsets; up is at gate + fs
};

__device__ inline bool find_place(int64_t fs, int slices, Place& p) {
  const uint32_t column = (blockIdx.y * kThreads + threadIdx.x) * 8;
  const uint32_t width = static_cast<uint32_t>(fs) * slices;
  if (column >= width) return false;
  const uint32_t slice = column / static_cast<uint32_t>(fs);
  const int64_t t = blockIdx.x;
  p.act = t * width + column;
  p.gate = t * 2 * width + column + static_cast<int64_t>(slice) * fs;
  return true;
}

__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs a) {
  grid_launch_dependents();
  grid_dependency_wait();
  Place p;
  if (!find_place(a.fs, a.slices, p)) return;
  float gate[8], up[8];
  unpack(load_vec<Bf16x8>(a.gate_up + p.gate), gate);
  unpack(load_vec<Bf16x8>(a.gate_up + p.gate + a.fs), up);
#pragma unroll
  for (int i = 0; i < 8; ++i) gate[i] = gated(gate[i], up[i]);
  store_vec(a.act + p.act, pack(gate));
}

// No __restrict__: d_gate_up may be gate_up; a thread reads its own places before it writes them.
__global__ void __launch_bounds__(kThreads) swiglu_bwd_kernel(SwigluBwdArgs a) {
  Place p;
  if (!find_place(a.fs, a.slices, p)) return;
  float gate[8], up[8], dact[8];
  unpack(load_vec<Bf16x8>(a.gate_up + p.gate), gate);
  unpack(load_vec<Bf16x8>(a.gate_up + p.gate + a.fs), up);
  unpack(load_vec<Bf16x8>(a.dact + p.act), dact);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float g = gate[i], s = sigmoid(g);
    gate[i] = dact[i] * up[i] * (s * fmaf(g, 1.0f - s, 1.0f));
    up[i] = dact[i] * (g * s);
  }
  store_vec(a.d_gate_up + p.gate, pack(gate));
  store_vec(a.d_gate_up + p.gate + a.fs, pack(up));
}

dim3 grid_for(const char* op, int64_t T, int64_t fs, int slices) {
  require(fs % 8 == 0, op, "fs = " + std::to_string(fs) + ", must be a multiple of 8");
  return dim3(blocks_for(T, 1), blocks_for(fs * slices, kThreads * 8));
}

}  // namespace

void swiglu(Stream stream, const SwigluArgs& a) {
  if (a.T == 0) return;
  launch_dependent("swiglu", stream, grid_for("swiglu", a.T, a.fs, a.slices), kThreads,
                   swiglu_kernel, a);
}

void swiglu_bwd(Stream stream, const SwigluBwdArgs& a) {
  if (a.T == 0) return;
  swiglu_bwd_kernel<<<grid_for("swiglu_bwd", a.T, a.fs, a.slices), kThreads, 0,
                      stream_of(stream)>>>(a);
  check_launch("swiglu_bwd");
}

}  // namespace rlk::cuda
