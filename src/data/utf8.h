#pragma once
// UTF-8 helpers of the data module. Pure functions.

#include <cstddef>
#include <string>
#include <string_view>

namespace rlk {

// Offset of the first byte that is not valid UTF-8 (overlong forms and surrogates are invalid);
// npos when all is well.
size_t find_invalid_utf8(std::string_view text);

// Appends `bytes` to `out`, each maximal invalid part replaced by U+FFFD. With `keep_incomplete`,
// an unfinished but so far valid sequence at the end is left out; returns the number of bytes
// consumed.
size_t append_lossy_utf8(std::string_view bytes, bool keep_incomplete, std::string* out);

// Normalization form C of valid UTF-8, as the `tokenizers` package computes it (tables of Unicode
// 9).
std::string nfc(std::string_view text);

// Appends the UTF-8 form of one code point.
void append_utf8(char32_t code_point, std::string* out);

// Decodes the code point at text[*at] of valid UTF-8 and moves *at behind it.
char32_t next_code_point(std::string_view text, size_t* at);

}  // namespace rlk
