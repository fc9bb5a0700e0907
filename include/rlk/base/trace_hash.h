#pragma once
// Layout-independent hash of an op's logical output: a 64-bit sum over elements' rows, so that the
// order in which ranks and micro-batches produce rows does not matter (used by --trace-ops and rlk
// debug).

#include <cstddef>
#include <cstdint>

namespace rlk {

// Hash of `bytes` bytes, seeded; not cryptographic.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed);

}  // namespace rlk
