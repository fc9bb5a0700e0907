#include "rlk/base/trace_hash.h"

#include <cstring>

#include "rlk/base/philox.h"

namespace rlk {

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t h = mix64(seed ^ bytes);
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = mix64(h ^ word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, bytes);
  return mix64(h ^ tail);
}

}  // namespace rlk
