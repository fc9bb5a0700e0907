#pragma once
// tokenizer.json (Hugging Face's format) -> byte-level BPE, exact. A Tokenizer is immutable after
// construction and may be shared by threads; a StreamDecoder belongs to one stream and borrows its
// Tokenizer.
//
// Supported: NFC or no normalizer; pre-tokenizer Sequence[Split(Regex, Isolated), ByteLevel without
// own regex and prefix space]; BPE without dropout, unknown token, affixes, byte fallback or
// ignore_merges; ByteLevel decoder; added tokens matched as they stand (leftmost, then longest).
// Everything else in the file is refused by name.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

class Tokenizer {
 public:
  explicit Tokenizer(const std::filesystem::path& file);  // InputError names the file and the key
  Tokenizer(std::string_view json, const std::string& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Added tokens in the text become their ids, as in Hugging Face's encode. InputError for invalid
  // UTF-8, or when the file's pattern exceeds PCRE2's match limit on this text, which is at
  // `where`.
  std::vector<int32_t> encode(std::string_view text, const std::string& where = "text") const;
  // Bytes of the ids, each maximal invalid UTF-8 part replaced by U+FFFD. Ids that no token has
  // decode to nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Raw bytes of one token; empty for an id that no token has.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  int32_t id_of(
      std::string_view content) const;  // of a token as the file spells it; -1 when absent
  int32_t size() const;                 // largest id + 1

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Decodes token by token for a terminal: push() returns the text that is complete, finish() what is
// left. The pieces together equal decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace rlk
