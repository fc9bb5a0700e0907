#include "utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "rlk/base/error.h"
#include "unicode_tables.h"

namespace rlk {
namespace {

struct Sequence {
  size_t length;  // bytes of the sequence, or of its maximal valid beginning
  bool valid;
  bool incomplete;  // valid so far, but the text ended
};

// The sequence that begins at text[at] (Unicode 15, table 3-7).
Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(at + i) < low || byte(at + i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

// Bytes of plain ASCII from text[at] on, eight at a time.
size_t ascii_run(std::string_view text, size_t at) {
  const size_t start = at;
  uint64_t word;
  while (at + 8 <= text.size()) {
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
    at += 8;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at - start;
}

// No code point below U+0300 (lead byte 0xCC) takes part in composition with its predecessor.
bool surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    at += ascii_run(text, at);
    if (at < text.size() && static_cast<uint8_t>(text[at]) >= 0xCC) return false;
  }
  return true;
}

// U+11A7 lies just before the trailing jamo. utf8proc takes it for one and drops it behind a Hangul
// syllable.
constexpr char32_t kBeforeTrailingJamo = 0x11A7;

// Code points that the reference NFC does not know stand alone: they neither move nor combine.
bool inert(char32_t c) {
  if (c == kBeforeTrailingJamo) return true;
  const auto* end = std::end(kInertInNfc);
  const auto* range =
      std::lower_bound(std::begin(kInertInNfc), end, c,
                       [](const CodePointRange& r, char32_t value) { return r.high < value; });
  return range != end && range->low <= c;
}

void append_composed(std::string_view text, std::string* out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) throw Error(std::string("utf8proc_map: ") + utf8proc_errmsg(length));
  out->append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = ascii_run(text, 0);
  while (at < text.size()) {
    const Sequence s = sequence_at(text, at);
    if (!s.valid) return at;
    at += s.length;
    at += ascii_run(text, at);
  }
  return std::string_view::npos;
}

size_t append_lossy_utf8(std::string_view bytes, bool keep_incomplete, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Sequence s = sequence_at(bytes, at);
    if (s.incomplete && keep_incomplete) break;
    if (s.valid) {
      out->append(bytes.substr(at, s.length));
    } else {
      append_utf8(0xFFFD, out);
    }
    at += s.length;
  }
  return at;
}

std::string nfc(std::string_view text) {
  if (surely_nfc(text)) return std::string(text);
  std::string out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (!inert(next_code_point(text, &at))) continue;
    append_composed(text.substr(begin, start - begin), &out);
    out.append(text.substr(start, at - start));
    begin = at;
  }
  append_composed(text.substr(begin), &out);
  return out;
}

void append_utf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

char32_t next_code_point(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const char32_t lead = byte(*at);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = c << 6 | (byte(*at + i) & 0x3F);
  *at += length;
  return c;
}

}  // namespace rlk
