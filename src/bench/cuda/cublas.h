#pragma once
// cuBLASLt as a yardstick, loaded when a benchmark asks for it: rlk itself does not link it. One
// thread.

#include <cstdint>
#include <memory>

#include "rlk/device/ops.h"

namespace rlk::bench {

// A row-major matrix product C[M, N] = A B, bf16 operands, fp32 sums, with the heuristic's first
// choice.
struct MatmulShape {
  int64_t M, N, K;
  bool a_by_columns;  // A stored [K, M], else [M, K]
  bool b_by_columns;  // B stored [N, K], else [K, N]
  bool out_f32;
};

class Matmul {
 public:
  // Null where the library is not installed. `workspace` of kWorkspace bytes outlives the object.
  static std::shared_ptr<const Matmul> make(const MatmulShape& shape, void* workspace);
  virtual ~Matmul() = default;
  virtual void run(Stream stream, const bf16* a, const bf16* b, void* c) const = 0;

  static constexpr size_t kWorkspace = size_t{64} << 20;
};

}  // namespace rlk::bench
