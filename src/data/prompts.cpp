#include "rlk/data/prompts.h"

#include <algorithm>
#include <bit>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json_reader.h"
#include "rlk/base/philox.h"
#include "rlk/base/sha256.h"
#include "rlk/base/text.h"
#include "rlk/data/chat.h"

namespace rlk {
namespace {

constexpr size_t kMaxDefects = 20;

// NFC lengthens a text threefold at most, and a token is at least one byte long.
constexpr int64_t kTokensPerByte = 3;

Role role_of(const std::string& name, JsonReader& reader) {
  if (name == "assistant") return Role::assistant;
  if (name == "system") return Role::system;
  if (name != "user")
    reader.fail("role", "\"" + printable(name) + "\"", "must be system, user or assistant");
  return Role::user;
}

// Reads one line; defects go to a list, and an empty string is returned with them.
class RowReader {
 public:
  RowReader(const PromptOptions& options, const std::string& where,
            std::vector<Diagnostic>& defects)
      : options_(options), where_(where), defects_(defects) {}

  void read(const Json& json, std::string* text, std::string* label) {
    JsonReader row(json, where_, "", defects_);
    if (!json.is_object()) return;
    if (!options_.label_key.empty()) *label = read_label(row);
    const Json* prompt = row.find(options_.prompt_key);
    if (prompt == nullptr) return;
    if (prompt->is_string()) {
      *text = prompt->get<std::string>();
      if (text->empty()) row.fail(options_.prompt_key, "is empty");
      if (options_.chat_template && !text->empty())
        *text = render_chat({{Role::user, *text, {}}}, true, options_.thinking);
    } else if (prompt->is_array()) {
      read_chat(*prompt, row, text);
    } else {
      row.fail(options_.prompt_key, shown(*prompt),
               "must be a string or an array of chat messages");
    }
  }

 private:
  std::string read_label(JsonReader& row) {
    const Json* label = row.find(options_.label_key);
    if (label == nullptr) return "";
    if (label->is_string()) return label->get<std::string>();
    if (label->is_number()) return label->dump();
    row.fail(options_.label_key, shown(*label), "must be a string or a number");
    return "";
  }

  void read_chat(const Json& array, JsonReader& row, std::string* text) {
    if (array.empty()) return row.fail(options_.prompt_key, "is empty");
    if (!options_.chat_template) {
      return row.fail(options_.prompt_key, "is an array of chat messages",
                      "must be a string unless the chat template is on");
    }
    const size_t before = defects_.size();
    std::vector<ChatMessage> messages;
    for (size_t i = 0; i < array.size(); ++i) {
      JsonReader turn(array[i], where_, options_.prompt_key + "[" + std::to_string(i) + "]",
                      defects_);
      ChatMessage message;
      std::string role = "user", reasoning;
      turn.string("role", role);
      turn.string("content", message.content);
      if (turn.string("reasoning_content", reasoning, JsonReader::Key::optional))
        message.reasoning = reasoning;
      const Json* calls = turn.find("tool_calls", JsonReader::Key::optional);
      if (calls != nullptr && !calls->empty())
        turn.fail("tool_calls", "tools are not supported", "must be empty, null or absent");
      message.role = role_of(role, turn);
      messages.push_back(std::move(message));
    }
    if (defects_.size() == before) *text = render_chat(messages, true, options_.thinking);
  }

  const PromptOptions& options_;
  const std::string& where_;
  std::vector<Diagnostic>& defects_;
};

std::string checked_contents(const std::filesystem::path& file, const PromptOptions& options) {
  std::string contents = read_file(file);
  if (contents.starts_with("PAR1")) {
    throw InputError(file.string(), "is a Parquet file",
                     "convert it: rlk prepare --convert " + file.string() + " --out FILE.jsonl");
  }
  const std::string sum = hex(sha256(contents.data(), contents.size()));
  if (!options.sha256.empty() && sum != options.sha256) {
    throw InputError(file.string(), "SHA-256 is " + sum, "must be " + options.sha256);
  }
  return contents;
}

// A line is a row.
std::string place(const std::string& file, int64_t row) {
  return file + ":" + std::to_string(row + 1);
}

// A keyed bijection of [0, 2^bits), bits even: a balanced Feistel network.
uint64_t permute_bits(uint64_t x, int bits, uint64_t key) {
  constexpr uint64_t kRounds = 6;
  const int half = bits / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t left = x >> half, right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mix64(key ^ mix64(right ^ round << 56)) & mask);
    left = right;
    right = next;
  }
  return left << half | right;
}

// Position -> row of one epoch: cycle-walking keeps the bijection inside [0, rows).
int64_t permute(int64_t position, int64_t rows, uint64_t key) {
  const int width = std::bit_width(static_cast<uint64_t>(rows - 1));
  const int bits = std::max(2, width + width % 2);
  uint64_t x = static_cast<uint64_t>(position);
  do {
    x = permute_bits(x, bits, key);
  } while (x >= static_cast<uint64_t>(rows));
  return static_cast<int64_t>(x);
}

}  // namespace

PromptSet::PromptSet(const std::filesystem::path& file, const PromptOptions& options,
                     const Tokenizer& tokenizer)
    : PromptSet(checked_contents(file, options), file.string(), options, tokenizer) {}

PromptSet::PromptSet(std::string_view lines, const std::string& file, const PromptOptions& options,
                     const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), file_(file) {
  std::vector<Diagnostic> defects;
  for (size_t at = 0; at < lines.size() && defects.size() < kMaxDefects;) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const size_t line = rows_.size() + 1;
    const std::string where = place(file, rows());
    Row& row = rows_.emplace_back();
    try {
      const Json json = parse_json(lines.substr(at, end - at), file, line);
      RowReader(options, where, defects).read(json, &row.text, &row.label);
    } catch (const InputError& error) {
      defects.insert(defects.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
    if (options.max_tokens > 0 &&
        static_cast<int64_t>(row.text.size()) * kTokensPerByte > options.max_tokens) {
      const auto count = static_cast<int64_t>(tokenizer.encode(row.text, where).size());
      if (count > options.max_tokens) {
        defects.push_back({where, "the prompt has " + std::to_string(count) + " tokens",
                           "must be at most " + std::to_string(options.max_tokens)});
      }
    }
    at = end + 1;
  }
  if (rows_.empty()) defects.push_back({file, "has no prompts", ""});
  if (!defects.empty()) throw InputError(std::move(defects));
}

PromptSet PromptSet::synthetic(uint64_t seed, int64_t length, int64_t vocab) {
  constexpr size_t kRows = 1 << 16;  // more than any step takes
  PromptSet set;
  set.rows_.resize(kRows);
  set.seed_ = seed;
  set.length_ = length;
  set.vocab_ = vocab;
  return set;
}

std::vector<int32_t> PromptSet::tokens(int64_t row) const {
  if (tokenizer_ != nullptr) return tokenizer_->encode(text(row), place(file_, row));
  const uint64_t key = sample_key(seed_, static_cast<uint64_t>(row));
  std::vector<int32_t> ids(static_cast<size_t>(length_));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(mix64(key + i) % static_cast<uint64_t>(vocab_));
  return ids;
}

std::vector<int64_t> rows_of_step(uint64_t seed, int64_t step, int64_t rows, int64_t per_step) {
  RLK_CHECK(step >= 0 && per_step > 0 && per_step <= rows, step, per_step, rows);
  const int64_t steps_per_epoch = rows / per_step;
  const int64_t first = step % steps_per_epoch * per_step;
  const uint64_t key = sample_key(seed, static_cast<uint64_t>(step / steps_per_epoch));
  std::vector<int64_t> result;
  for (int64_t i = 0; i < per_step; ++i) result.push_back(permute(first + i, rows, key));
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace rlk
