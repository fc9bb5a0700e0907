#include "rlk/base/json.h"

#include <unordered_set>
#include <vector>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxQuoted = 80;  // bytes of the user's text that a message repeats

// Feeds the lexer and tells how far it has read: nlohmann's callbacks carry no position of their
// own.
class CountingIterator {
 public:
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::input_iterator_tag;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) { return !(a == b); }

 private:
  const char* at_;
  const char** furthest_;
};

// "file:line:column" of a byte offset; columns count characters, not bytes.
std::string place(std::string_view text, size_t offset, const std::string& file, size_t line) {
  size_t column = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++column;
    }
  }
  return file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

// nlohmann's message without its own position and without the raw bytes that it quotes.
std::string reason(std::string message) {
  if (const size_t id = message.find("] "); id != std::string::npos) message.erase(0, id + 2);
  if (message.starts_with("parse error at ")) {
    if (const size_t colon = message.find(": "); colon != std::string::npos)
      message.erase(0, colon + 2);
  }
  if (const size_t read = message.find("; last read: '"); read != std::string::npos) {
    const size_t expected = message.rfind("'; expected ");
    message.erase(read, expected == std::string::npos || expected < read ? std::string::npos
                                                                         : expected + 1 - read);
  }
  if (message.size() > 3 * kMaxQuoted) message.resize(3 * kMaxQuoted);
  return message;
}

// Builds the document. Objects are filled by emplace_back: ordered_map's own insertion searches
// linearly, which a vocabulary of 150,000 keys cannot afford; the sets below find duplicate keys
// instead.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const char* const* furthest, const std::string& file,
          size_t first_line)
      : text_(text), furthest_(furthest), file_(file), first_line_(first_line) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // not in JSON text
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Level& level = levels_.back();
    if (!level.keys.insert(value).second) {
      const std::string shown = value.substr(0, kMaxQuoted);
      fail(read_so_far(), "duplicate key \"" + shown + "\"");
    }
    level.key = std::move(value);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail(position == 0 ? 0 : position - 1, reason(error.what()));
  }

 private:
  struct Level {
    Json value;
    std::string key;  // of the member being read
    std::unordered_set<std::string> keys;
  };

  size_t read_so_far() const { return static_cast<size_t>(*furthest_ - text_.data()); }

  [[noreturn]] void fail(size_t offset, const std::string& what) const {
    throw InputError(place(text_, offset, file_, first_line_), what);
  }

  bool open(Json value) {
    if (levels_.size() == kMaxDepth)
      fail(read_so_far(), "nested deeper than " + std::to_string(kMaxDepth));
    levels_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  bool add(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      level.value.get_ref<Json::object_t&>().emplace_back(std::move(level.key), std::move(value));
    }
    return true;
  }

  std::string_view text_;
  const char* const* furthest_;
  const std::string& file_;
  size_t first_line_;
  std::vector<Level> levels_;
  Json root_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file, size_t first_line) {
  const char* furthest = text.data();
  Builder builder(text, &furthest, file, first_line);
  Json::sax_parse(CountingIterator(text.data(), &furthest),
                  CountingIterator(text.data() + text.size(), &furthest), &builder);
  return builder.take();
}

}  // namespace rlk
