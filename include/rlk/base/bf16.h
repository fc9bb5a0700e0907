#pragma once
// bf16 storage type. Plain C++; CUDA sources use the same code through RLK_HOST_DEVICE (same layout
// as __nv_bfloat16).

#include <cstdint>

#include "rlk/base/host_device.h"

namespace rlk {

struct bf16 {
  uint16_t bits;
  RLK_HOST_DEVICE friend bool operator==(bf16 a, bf16 b) { return a.bits == b.bits; }
};
static_assert(sizeof(bf16) == 2);

RLK_HOST_DEVICE inline float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN with its sign.
RLK_HOST_DEVICE inline bf16 to_bf16(float x) {
  uint32_t u = __builtin_bit_cast(uint32_t, x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Order-preserving integer key of a bf16 value: a < b exactly if key(a) < key(b); -0 and +0 share a
// key. NaN is not a value here: callers check for it first.
RLK_HOST_DEVICE inline uint32_t bf16_key(bf16 x) {
  uint32_t u = x.bits;
  if (u == 0x8000u) u = 0;
  return (u & 0x8000u) ? 0xffffu - u : u + 0x8000u;
}

}  // namespace rlk
