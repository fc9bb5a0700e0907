#include "split_pattern.h"

#include <pcre2.h>

#include <cstdint>
#include <iterator>
#include <sstream>

#include "rlk/base/error.h"
#include "unicode_tables.h"

namespace rlk {
namespace {

constexpr size_t kMaxPattern = 4096;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackStart = 32 * 1024, kJitStackMax = 8 * 1024 * 1024;

// White_Space of Unicode, which is what \s means to Oniguruma. PCRE2's own \s adds U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Walks the pattern once: writes \s and \S out, and refuses what the two libraries read
// differently.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else {
        in_class_ ? in_class() : outside();
      }
    }
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view text) const {
    return std::string_view(pattern_).substr(at_).starts_with(text);
  }
  void copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(where_, what + " is not supported");
  }

  void escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (c == 's') {
      out_ += in_class_ ? std::string(kSpaces) : "[" + std::string(kSpaces) + "]";
      at_ += 2;
    } else if (c == 'S' && !in_class_) {
      out_ += "[^" + std::string(kSpaces) + "]";
      at_ += 2;
    } else if (next_is(R"(\p{L})")) {
      property(kNewLetters, std::size(kNewLetters));
    } else if (next_is(R"(\p{N})")) {
      property(kNewNumbers, std::size(kNewNumbers));
    } else if (std::string_view(R"(rntf\.[](){}*+?|^$/-'"#&~!@%,;:<>=_` )").find(c) !=
               std::string_view::npos) {
      copy(2);
    } else {
      refuse(std::string("escape \\") + (c > ' ' ? c : '?') + (in_class_ ? " in a class" : ""));
    }
  }

  // A property with the characters that a newer Unicode added to it.
  void property(const CodePointRange* extra, size_t count) {
    if (!in_class_) out_ += '[';
    copy(5);
    for (size_t i = 0; i < count; ++i) {
      out_ += "\\x{" + hex(extra[i].low) + "}-\\x{" + hex(extra[i].high) + "}";
    }
    if (!in_class_) out_ += ']';
  }
  static std::string hex(char32_t c) {
    std::ostringstream text;
    text << std::hex << static_cast<uint32_t>(c);
    return text.str();
  }

  void in_class() {
    if (pattern_[at_] == '[') refuse("a class inside a class");
    if (next_is("&&")) refuse("&& in a class");
    if (pattern_[at_] == ']') in_class_ = false;
    copy(1);
  }

  void outside() {
    const char c = pattern_[at_];
    if (c == '[') {
      in_class_ = true;
      copy(next_is("[^") ? 2 : 1);
      if (next_is("]")) refuse("an empty class");
    } else if (next_is("(?")) {
      static constexpr std::string_view kGroups[] = {"(?:", "(?i:", "(?=", "(?!"};
      for (const std::string_view group : kGroups) {
        if (next_is(group)) return copy(group.size());
      }
      refuse("group " + pattern_.substr(at_, 4));
    } else if (next_is("(*")) {
      refuse("(*");
    } else if (next_is("}+")) {  // possessive to PCRE2, a second quantifier to Oniguruma
      refuse("}+");
    } else {
      copy(1);
    }
  }

  const std::string& pattern_;
  const std::string& where_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[160];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct SplitPattern::Impl {
  std::string where;
  pcre2_code* code = nullptr;
  ~Impl() { pcre2_code_free(code); }
};

struct SplitPattern::Scratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

SplitPattern::Scratch::Scratch(const SplitPattern& pattern) : impl_(std::make_unique<Impl>()) {
  impl_->data = pcre2_match_data_create_from_pattern(pattern.impl_->code, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  impl_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  if (impl_->data == nullptr || impl_->context == nullptr || impl_->stack == nullptr)
    throw Error("PCRE2: out of memory");
  pcre2_set_match_limit(impl_->context, kMatchLimit);
  pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
}

SplitPattern::Scratch::~Scratch() = default;

SplitPattern::SplitPattern(const std::string& pattern, const std::string& where)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = where;
  if (pattern.size() > kMaxPattern)
    throw InputError(where, "is longer than " + std::to_string(kMaxPattern) + " bytes");
  const std::string text = Translator(pattern, where).run();
  int code = 0;
  PCRE2_SIZE offset = 0;
  impl_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (impl_->code == nullptr) throw InputError(where, pcre2_message(code));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(impl_->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing) throw InputError(where, "can match the empty string");
  if (const int rc = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE); rc != 0)
    throw InputError(where, "PCRE2's JIT: " + pcre2_message(rc));
}

SplitPattern::~SplitPattern() = default;

bool SplitPattern::find(std::string_view text, size_t start, Scratch* scratch, size_t* begin,
                        size_t* end) const {
  const int rc =
      pcre2_jit_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                      PCRE2_NO_UTF_CHECK, scratch->impl_->data, scratch->impl_->context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) throw InputError(impl_->where, "PCRE2: " + pcre2_message(rc), "shorten the text");
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch->impl_->data);
  *begin = offsets[0];
  *end = offsets[1];
  // A lookbehind or \K may move the beginning back; matches must advance.
  if (*begin < start || *end <= *begin) throw InputError(impl_->where, "matches without advancing");
  return true;
}

}  // namespace rlk
