#pragma once
// Layout-independent fingerprints of exported tensors (docs/formats.md, "Fingerprint"): SHA-256
// over the SHA-256s of 1 MiB pieces of each virtual slice, slices in ascending order. Pure
// functions; thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rlk/base/sha256.h"

namespace rlk {

inline constexpr int64_t kFingerprintPiece = 1 << 20;  // bytes

// The tensor's fingerprint from its slices' piece digests, concatenated in (slice, piece) order.
// Any thread or rank may have computed the digests.
Digest combine_pieces(std::span<const Digest> pieces);

// The same from memory: `slices` are the virtual slices' bytes in ascending order.
Digest fingerprint_slices(const std::vector<std::span<const std::byte>>& slices);

// The same from an exported tensor [rows, columns] (columns = 1 for a vector) of `element` bytes an
// element; the name decides how it is sliced. InputError for a name that no Qwen3 checkpoint has,
// or dimensions that 8 does not divide.
Digest fingerprint_exported(const std::string& name, const void* data, int64_t rows,
                            int64_t columns, size_t element);

}  // namespace rlk
