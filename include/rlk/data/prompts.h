#pragma once
// Prompts from JSON lines, and which of them a step uses. A PromptSet is immutable and may be
// shared by threads; it borrows its Tokenizer, if it has one.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/data/tokenizer.h"

namespace rlk {

struct PromptOptions {
  std::string prompt_key = "prompt";  // a string, or an array of chat messages {"role", "content"}
  std::string label_key = "label";    // a string or a number; empty = rows need no label
  bool chat_template = true;  // render through Qwen3's template; a string becomes one user turn
  bool thinking = true;
  int64_t max_tokens = 0;  // longest prompt that leaves room for a response; 0 = any
  std::string sha256;      // of the file, 64 hex digits; empty = any file
};

class PromptSet {
 public:
  // Reads and checks every row. InputError names file and line of up to 20 defects: malformed JSON,
  // invalid UTF-8, missing or empty prompts, unknown roles, prompts longer than max_tokens.
  PromptSet(const std::filesystem::path& file, const PromptOptions& options,
            const Tokenizer& tokenizer);
  PromptSet(std::string_view lines, const std::string& file, const PromptOptions& options,
            const Tokenizer& tokenizer);

  // Prompts of a synthetic model: `length` pseudo-random ids below `vocab`, neither text nor label.
  static PromptSet synthetic(uint64_t seed, int64_t length, int64_t vocab);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  const std::string& text(int64_t row) const { return rows_[row].text; }  // rendered
  const std::string& label(int64_t row) const { return rows_[row].label; }
  std::vector<int32_t> tokens(int64_t row) const;

 private:
  struct Row {
    std::string text, label;
  };
  PromptSet() = default;

  std::vector<Row> rows_;
  const Tokenizer* tokenizer_ = nullptr;  // null: synthetic
  std::string file_;
  uint64_t seed_ = 0;
  int64_t length_ = 0, vocab_ = 0;
};

// The data cursor: the dataset rows of a step, ascending and distinct. Every epoch is a permutation
// of its own, and gives rows / per_step steps; the rows left over rest until the next epoch. A pure
// function of its arguments, which must satisfy 0 < per_step <= rows and step >= 0.
std::vector<int64_t> rows_of_step(uint64_t seed, int64_t step, int64_t rows, int64_t per_step);

}  // namespace rlk
