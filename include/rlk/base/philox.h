#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) and rlk's use
// of it (R6). Plain C++; CUDA sources use the same code through RLK_HOST_DEVICE.

#include <cstdint>

#include "rlk/base/host_device.h"

namespace rlk {

struct PhiloxBlock {
  uint32_t word[4];
};

RLK_HOST_DEVICE inline PhiloxBlock philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * counter.word[0];
    const uint64_t p1 = 0xCD9E8D57ull * counter.word[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// 16-bit word i of the sequence that a key names lies in block i / kHalfWords of that key.
inline constexpr int64_t kHalfWords = 8;

RLK_HOST_DEVICE inline PhiloxBlock half_word_block(uint64_t key, uint64_t index) {
  return philox({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

RLK_HOST_DEVICE inline uint32_t half_word(const PhiloxBlock& block, int64_t i) {
  return block.word[i % kHalfWords / 2] >> (i % 2 * 16) & 0xFFFF;
}

// The same number on every machine: both operations are exact or rounded once, and never fused.
RLK_HOST_DEVICE inline float uniform_value(uint32_t word, float centre, float step) {
  return centre + (static_cast<float>(word) - 32767.5f) * step;
}

// splitmix64 finaliser (Steele, Lea, Flood 2014): spreads structured integers over 64 bits.
RLK_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// What one sampled position draws from. Token j uses word j % 4 of the block with counter
// {j / 4, position, sample, prompt} and key mix64(seed ^ mix64(step)).
struct SampleKey {
  uint64_t key;  // sample_key(seed, step)
  uint32_t prompt;
  uint32_t sample;
  uint32_t position;  // of the token being drawn, counted from the sequence's first token
  uint32_t pad = 0;
};

RLK_HOST_DEVICE inline uint64_t sample_key(uint64_t seed, uint64_t step) {
  return mix64(seed ^ mix64(step));
}

RLK_HOST_DEVICE inline PhiloxBlock sample_block(const SampleKey& k, uint32_t token_quad) {
  return philox({{token_quad, k.position, k.sample, k.prompt}}, static_cast<uint32_t>(k.key),
                static_cast<uint32_t>(k.key >> 32));
}

}  // namespace rlk
