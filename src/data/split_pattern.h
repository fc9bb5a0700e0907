#pragma once
// The regular expression of a tokenizer's Split, run by PCRE2's JIT. Immutable and shared by
// threads; a Scratch is one thread's.

#include <memory>
#include <string>
#include <string_view>

namespace rlk {

class SplitPattern {
 public:
  // `where` names the key in error messages. InputError when the pattern does not compile, can
  // match nothing, or uses an escape whose meaning differs between PCRE2 and the Oniguruma library
  // that Hugging Face uses.
  SplitPattern(const std::string& pattern, const std::string& where);
  ~SplitPattern();

  class Scratch {  // match data and JIT stack
   public:
    explicit Scratch(const SplitPattern& pattern);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class SplitPattern;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // First match in valid UTF-8 at or after `start`; false when there is none. InputError when the
  // match limit is exceeded.
  bool find(std::string_view text, size_t start, Scratch* scratch, size_t* begin,
            size_t* end) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rlk
