#pragma once
// Small pure helpers on text, for messages and for values that users type.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk {

// Untrusted text made safe for a terminal: control bytes and bytes that are no ASCII become \xNN,
// at most 80 characters.
std::string printable(std::string_view text);

// A message made safe for a terminal and a log: control bytes become \xNN, UTF-8 stays; what
// exceeds `limit` bytes is cut.
std::string one_line(std::string_view text, size_t limit = 1000);

// "1, 2, 4 or 8"
std::string join_choices(const std::vector<std::string>& choices);

// The whole text as a number in base 10, or nothing: no spaces, no trailing characters, no
// overflow, no inf or nan.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<uint64_t> parse_unsigned(std::string_view text);
std::optional<double> parse_number(std::string_view text);

// The shortest decimal that reads back as the same value: "1e-06", "0.1", "512".
std::string format_number(double value);
std::string format_number(float value);

// "1.50 GiB", "384 KiB", "12 B"
std::string format_bytes(uint64_t bytes);

}  // namespace rlk
