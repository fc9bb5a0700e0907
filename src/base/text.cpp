#include "rlk/base/text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace rlk {
namespace {

template <class Value>
std::optional<Value> parse_whole(std::string_view text) {
  Value value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template <class Float>
std::string format_shortest(Float value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

// Bytes that are not plain become \xNN.
template <class Plain>
std::string escaped(std::string_view text, size_t limit, Plain plain) {
  std::string safe;
  for (const char c : text) {
    if (safe.size() >= limit) return safe + "...";
    if (plain(static_cast<unsigned char>(c))) {
      safe += c;
    } else {
      std::array<char, 5> hex;
      std::snprintf(hex.data(), hex.size(), "\\x%02x", static_cast<unsigned char>(c));
      safe += hex.data();
    }
  }
  return safe;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kLimit = 80;
  return escaped(text, kLimit, [](unsigned char byte) { return byte >= 0x20 && byte < 0x7f; });
}

std::string one_line(std::string_view text, size_t limit) {
  return escaped(text, limit, [](unsigned char byte) { return byte >= 0x20 && byte != 0x7f; });
}

std::string join_choices(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  return parse_whole<int64_t>(text);
}

std::optional<uint64_t> parse_unsigned(std::string_view text) {
  return parse_whole<uint64_t>(text);
}

std::optional<double> parse_number(std::string_view text) {
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string format_number(double value) {
  return format_shortest(value);
}
std::string format_number(float value) {
  return format_shortest(value);
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value,
                kUnits[unit]);
  return buffer.data();
}

}  // namespace rlk
