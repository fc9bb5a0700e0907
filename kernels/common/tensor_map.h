#pragma once
// Tensor maps for TMA, encoded on the host (under a microsecond: built per call, passed by value as
// a __grid_constant__ parameter, so graphs keep them). 128-byte swizzle; elements outside the
// tensor read as zero. Any thread.

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace rlk::cuda {

enum class TmaType { bf16, f32 };

// One dimension: how many elements, how far apart (elements; ignored for the innermost, which is
// contiguous), how many a box takes.
struct TmaDim {
  int64_t size;
  int64_t stride;
  int box;
};

// Innermost dimension first, 2 to 5 of them. base 16-byte aligned, strides multiples of 16 bytes.
// Throws rlk::Error naming `op`.
CUtensorMap tensor_map(const char* op, const void* base, TmaType type,
                       std::initializer_list<TmaDim> dims);

}  // namespace rlk::cuda
