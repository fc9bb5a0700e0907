#pragma once
// The aligned fp32 tree over 1, 2, 4 or 8 parts (R1): ((0+1)+(2+3)) + ((4+5)+(6+7)). Pure;
// vectorised over elements.

#include <cstdint>

#include "rlk/base/bf16.h"

namespace rlk {

// out[i] = tree over part[0..count)[i], i < n. out may not overlap a part, except out == part[0]
// for count 1.
void tree_f32(const float* const* part, int count, float* out, int64_t n);
// The same, rounded once to bf16.
void tree_bf16(const float* const* part, int count, bf16* out, int64_t n);

}  // namespace rlk
