// Native mode on CUDA: what engines do whose sums follow their shapes. The control of consistency
// mode, and the yardstick of its cost.
//
//   gemm, gemm_dgrad, gemm_wgrad   cuBLASLt with the heuristic's choice, one call each
//   attention                      decode in splits that fill the device; longer segments and the
//                                  backward passes are the strict kernels
//   logprob_stats                  one pass over the rank's shard, in parts that fill the device
//
// A row-parallel weight lies in virtual slices, which no library call can contract. So each gets a
// copy with whole rows, made when it is first seen and again whenever the weights have changed.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/common/check.h"
#include "kernels/launchers.h"
#include "rlk/device/matmul.h"
#include "rlk/device/ops.h"

namespace rlk {
namespace {

using cuda::check;
using cuda::stream_of;

// w [slices][N][ks] -> [N][slices*ks].
struct Sliced {
  const bf16* w;
  int64_t N, ks;
  int slices;
  auto operator<=>(const Sliced&) const = default;
};

const Ops* strict = nullptr;
void* workspace = nullptr;
std::map<Sliced, bf16*> whole_rows;
std::map<MatmulShape, std::shared_ptr<const Matmul>> products;

void copy_rows(Stream stream, const Sliced& from, bf16* to) {
  const size_t row = from.ks * sizeof(bf16);
  for (int s = 0; s < from.slices; ++s)
    check(cudaMemcpy2DAsync(to + s * from.ks, row * from.slices, from.w + s * from.N * from.ks, row,
                            row, from.N, cudaMemcpyDeviceToDevice, stream_of(stream)),
          "cudaMemcpy2DAsync");
}

const bf16* with_whole_rows(Stream stream, const Sliced& w) {
  bf16*& copy = whole_rows[w];
  if (copy == nullptr) {
    copy = static_cast<bf16*>(strict->alloc(w.N * w.ks * w.slices * sizeof(bf16)));
    copy_rows(stream, w, copy);
  }
  return copy;
}

void weights_changed(Stream stream) {
  for (const auto& [w, copy] : whole_rows) copy_rows(stream, w, copy);
}

// The largest power of two, up to what any kernel wants, that divides all of them.
int alignment(std::initializer_list<uintptr_t> values) {
  uintptr_t bits = 256;
  for (uintptr_t value : values) bits |= value;
  return static_cast<int>(bits & -bits);
}

void multiply(Stream stream, MatmulShape shape, const bf16* a, const bf16* b, void* c) {
  const auto at = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const size_t out = shape.out_f32 ? sizeof(float) : sizeof(bf16);
  shape.alignment = alignment({at(a), at(b), at(c), shape.a_stride * sizeof(bf16),
                               shape.b_stride * sizeof(bf16), shape.c_stride * out});
  std::shared_ptr<const Matmul>& product = products[shape];
  if (!product) product = Matmul::make(shape, workspace);
  if (!product) throw Error("native mode needs cuBLASLt: libcublasLt.so.13 cannot be loaded");
  product->run(stream, a, b, c);
}

void native_gemm(Stream stream, const GemmArgs& a) {
  if (a.T == 0) return;
  const int64_t K = a.slices * a.ks;
  const bool sliced = a.slices > 1 && a.w_slice != a.ks;
  if (sliced && (a.w_slice != a.N * a.ks || a.ldw != a.ks))
    throw Error("native gemm: slices must lie one after the other");
  multiply(stream,
           {.M = a.T,
            .N = a.N,
            .K = K,
            .a_by_columns = false,
            .b_by_columns = true,
            .out_f32 = a.out_f32,
            .lda = a.ldx,
            .ldb = sliced ? K : a.ldw,
            .ldc = a.ldy},
           a.x, sliced ? with_whole_rows(stream, {a.w, a.N, a.ks, a.slices}) : a.w, a.y);
}

void native_gemm_swiglu(Stream stream, const GemmSwigluArgs& a) {
  native_gemm(stream, a.gemm);
  strict->swiglu(stream, a.swiglu());
}

void native_gemm_dgrad(Stream stream, const GemmDgradArgs& a) {
  if (a.T == 0) return;
  if (a.slices > 1 && a.w_slice != a.ns * a.ldw)
    throw Error("native gemm_dgrad: rows must lie one after the other");
  const int64_t N = a.slices * a.ns;
  const bool grouped = a.groups > 1;
  if (grouped && (a.w_group != N * a.gk || a.ldw != a.gk))
    throw Error("native gemm_dgrad: groups must lie one after the other");
  multiply(stream,
           {.M = a.T,
            .N = a.groups * a.gk,
            .K = N,
            .a_by_columns = false,
            .b_by_columns = false,
            .out_f32 = a.out_f32,
            .lda = a.lddy,
            .ldb = grouped ? a.groups * a.gk : a.ldw,
            .ldc = a.lddx},
           a.dy, grouped ? with_whole_rows(stream, {a.w, N, a.gk, a.groups}) : a.w, a.dx);
}

void native_gemm_wgrad(Stream stream, const GemmWgradArgs& a) {
  const int64_t first = a.leaves.begin[0], rows = a.leaves.begin[a.leaves.count] - first;
  if (rows == 0) {
    for (int g = 0; g < a.groups; ++g)
      check(cudaMemset2DAsync(a.dw + g * a.dw_group, a.lddw * sizeof(float), 0,
                              a.gk * sizeof(float), a.N, stream_of(stream)),
            "cudaMemset2DAsync");
    return;
  }
  multiply(stream,
           {.M = a.N,
            .N = a.gk,
            .K = rows,
            .a_by_columns = true,
            .b_by_columns = false,
            .out_f32 = true,
            .lda = a.lddy,
            .ldb = a.ldx,
            .ldc = a.lddw,
            .batch = a.groups,
            .a_stride = 0,
            .b_stride = a.groups > 1 ? a.gk : 0,
            .c_stride = a.groups > 1 ? a.dw_group : 0},
           a.dy + first * a.lddy, a.x + first * a.ldx, a.dw);
}

}  // namespace

const Ops& cuda_native_ops(int device) {
  static Ops table;
  strict = &cuda_ops(device);
  if (workspace == nullptr) workspace = strict->alloc(Matmul::kWorkspace);
  table = *strict;
  table.native = "cuda.native";
  table.native_gemm = "cublaslt";
  table.gemm = native_gemm;
  table.gemm_swiglu = native_gemm_swiglu;
  table.gemm_dgrad = native_gemm_dgrad;
  table.gemm_wgrad = native_gemm_wgrad;
  table.attention = cuda::native_attention;
  table.attention_workspace = cuda::native_attention_workspace;
  table.logprob_stats = cuda::native_logprob_stats;
  table.weights_changed = weights_changed;
  return table;
}

}  // namespace rlk
