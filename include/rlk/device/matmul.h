#pragma once
// Matrix products by cuBLASLt: native mode's GEMMs and the benchmarks' yardstick. The library is
// loaded when it is first asked for, since rlk does not link it. One thread.

#include <compare>
#include <cstdint>
#include <memory>

#include "rlk/device/ops.h"

namespace rlk {

// A row-major matrix product C[M, N] = A B, bf16 operands, fp32 sums. Strides of 0: contiguous.
struct MatmulShape {
  int64_t M, N, K;
  bool a_by_columns;  // A stored [K, M], else [M, K]
  bool b_by_columns;  // B stored [N, K], else [K, N]
  bool out_f32;
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows as stored
  int batch = 1;                      // products, their operands these elements apart:
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  int alignment = 16;  // bytes, of all operands; more may be faster
  auto operator<=>(const MatmulShape&) const = default;
};

// One shape with the heuristic's first choice of algorithm.
class Matmul {
 public:
  // Null where the library is not installed. `workspace` of kWorkspace bytes outlives the object.
  static std::shared_ptr<const Matmul> make(const MatmulShape& shape, void* workspace);
  virtual ~Matmul() = default;
  virtual void run(Stream stream, const bf16* a, const bf16* b, void* c) const = 0;

  static constexpr size_t kWorkspace = size_t{64} << 20;
};

}  // namespace rlk
