#pragma once
// Joins partial results that come one after the other by the aligned tree, in fp32: what one op
// call over all of them would give. Borrows its memory; one use.

#include <bit>
#include <cstdint>

#include "rlk/device/ops.h"

namespace rlk {

class TreeSum {
 public:
  // out [n] f32; scratch: scratch_floats(chunks, n) floats. chunks in {1, 2, 4, 8}.
  TreeSum(const Ops& ops, Stream stream, int chunks, int64_t n, float* out, float* scratch)
      : ops_(ops),
        stream_(stream),
        depth_(std::countr_zero(static_cast<unsigned>(chunks))),
        n_(n),
        out_(out),
        scratch_(scratch) {}

  static int64_t scratch_floats(int chunks, int64_t n) {
    return std::countr_zero(static_cast<unsigned>(chunks)) * n;
  }

  // Where the next partial belongs, then: it is there.
  float* next() const { return depth_ == 0 ? out_ : done_ % 2 == 0 ? pending(0) : spare(); }
  void join() {
    const int i = done_++;
    for (int level = 0; (i >> level & 1) != 0; ++level) {
      const bool joins_again = level + 1 < depth_ && (i >> (level + 1) & 1) != 0;
      ops_.tree_add(stream_, {.part = {pending(level), spare()},
                              .count = 2,
                              .out = joins_again ? spare() : pending(level + 1),
                              .n = n_,
                              .out_f32 = true,
                              .accumulate = false});
    }
  }

 private:
  // The finished subtree of 2^level partials that waits for its neighbour. The last but one waits
  // where the sum will be.
  float* pending(int level) const { return level >= depth_ - 1 ? out_ : scratch_ + level * n_; }
  float* spare() const { return scratch_ + (depth_ - 1) * n_; }

  const Ops& ops_;
  Stream stream_;
  int depth_, done_ = 0;
  int64_t n_;
  float *out_, *scratch_;
};

}  // namespace rlk
