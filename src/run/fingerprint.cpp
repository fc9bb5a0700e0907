#include "rlk/run/fingerprint.h"

#include <algorithm>
#include <array>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr int kSliceCount = 8;
constexpr int64_t kVocabUnit = 1024;  // the padded vocabulary is a multiple of it

enum class Cut { rows, columns, vocabulary, none };

Cut cut_of(const std::string& name) {
  struct Row {
    const char* part;
    Cut cut;
  };
  // Norm names first: "q_norm" and "input_layernorm" share no part with the projections.
  static constexpr std::array<Row, 10> kRows = {{{"norm.weight", Cut::none},
                                                 {".q_proj.", Cut::rows},
                                                 {".k_proj.", Cut::rows},
                                                 {".v_proj.", Cut::rows},
                                                 {".gate_proj.", Cut::rows},
                                                 {".up_proj.", Cut::rows},
                                                 {".o_proj.", Cut::columns},
                                                 {".down_proj.", Cut::columns},
                                                 {"embed_tokens.", Cut::vocabulary},
                                                 {"lm_head.", Cut::vocabulary}}};
  for (const Row& row : kRows)
    if (name.find(row.part) != std::string::npos) return row.cut;
  throw InputError("tensor " + name, "is not part of a Qwen3 checkpoint");
}

using Slice = std::span<const std::byte>;

void add_pieces(Slice slice, std::vector<Digest>* pieces) {
  while (!slice.empty()) {
    const size_t n = std::min<size_t>(slice.size(), kFingerprintPiece);
    pieces->push_back(sha256(slice.data(), n));
    slice = slice.subspan(n);
  }
}

}  // namespace

Digest combine_pieces(std::span<const Digest> pieces) {
  return sha256(pieces.data(), pieces.size_bytes());
}

Digest fingerprint_slices(const std::vector<Slice>& slices) {
  std::vector<Digest> pieces;
  for (const Slice slice : slices) add_pieces(slice, &pieces);
  return combine_pieces(pieces);
}

Digest fingerprint_exported(const std::string& name, const void* data, int64_t rows,
                            int64_t columns, size_t element) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const Cut cut = cut_of(name);
  if (cut == Cut::none) return fingerprint_slices({Slice(bytes, rows * columns * element)});

  const bool by_columns = cut == Cut::columns;
  if (cut != Cut::vocabulary && (by_columns ? columns : rows) % kSliceCount != 0) {
    throw InputError(
        "tensor " + name,
        "has " + std::to_string(by_columns ? columns : rows) + (by_columns ? " columns" : " rows"),
        "must be a multiple of 8");
  }
  std::vector<Digest> pieces;
  if (by_columns) {
    const size_t width = columns / kSliceCount * element;
    std::vector<std::byte> packed(rows * width);
    for (int v = 0; v < kSliceCount; ++v) {
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(bytes + r * columns * element + v * width, width, packed.data() + r * width);
      add_pieces(packed, &pieces);
    }
    return combine_pieces(pieces);
  }
  const int64_t padded =
      cut == Cut::vocabulary ? (rows + kVocabUnit - 1) / kVocabUnit * kVocabUnit : rows;
  for (int v = 0; v < kSliceCount; ++v) {
    const int64_t begin = std::min(rows, padded / kSliceCount * v);
    const int64_t end = std::min(rows, padded / kSliceCount * (v + 1));
    add_pieces(Slice(bytes + begin * columns * element, (end - begin) * columns * element),
               &pieces);
  }
  return combine_pieces(pieces);
}

}  // namespace rlk
