#include "rlk/data/score_lines.h"

#include <istream>
#include <optional>

#include "rlk/base/error.h"
#include "rlk/base/json_reader.h"
#include "rlk/data/tokenizer.h"

namespace rlk {
namespace {

constexpr size_t kMaxDefects = 20;

class LineReader {
 public:
  LineReader(const ModelConfig& config, const std::filesystem::path& tokenizer)
      : config_(config), tokenizer_file_(tokenizer) {}

  std::vector<Sample> read(std::istream& in, const std::string& source) {
    std::vector<Sample> samples;
    std::string line;
    for (size_t number = 1; defects_.size() < kMaxDefects && std::getline(in, line); ++number) {
      Json object;
      if (!succeeds([&] { object = parse_json(line, source, number); })) continue;
      JsonReader reader(object, source + ":" + std::to_string(number), "", defects_);
      if (object.is_object()) samples.push_back(sample(reader));
    }
    if (samples.empty() && defects_.empty()) defects_.push_back({source, "has no lines", ""});
    if (!defects_.empty()) throw InputError(defects_);
    return samples;
  }

 private:
  // Otherwise the defects of a line are kept, and the next one is read.
  template <class Read>
  bool succeeds(Read read) {
    try {
      read();
      return true;
    } catch (const InputError& error) {
      defects_.insert(defects_.end(), error.diagnostics().begin(), error.diagnostics().end());
      return false;
    }
  }

  Sample sample(JsonReader& line) {
    Sample s;
    const size_t before = defects_.size();
    const bool has_ids = line.find("ids", JsonReader::Key::optional) != nullptr;
    const bool has_text = line.find("text", JsonReader::Key::optional) != nullptr;
    std::string text;
    if (has_ids)
      s.tokens = ids(line);
    else if (!has_text)
      line.fail("ids", "missing", "a line needs \"ids\" or \"text\"");
    else if (line.string("text", text))
      s.tokens = encoded(text, line);
    int64_t prompt_len = 1;
    line.integer("prompt_len", 1, INT32_MAX, prompt_len, JsonReader::Key::optional);
    const auto n = static_cast<int64_t>(s.tokens.size());
    const std::string key = has_ids ? "ids" : "text";
    if (defects_.size() == before && n <= prompt_len)
      line.fail(key, std::to_string(n) + " tokens",
                "nothing is left to score behind the first " + std::to_string(prompt_len));
    if (n > config_.max_position)
      line.fail(key, std::to_string(n) + " tokens",
                "must be at most the model's " + std::to_string(config_.max_position));
    s.prompt_len = static_cast<int32_t>(prompt_len);
    // What else `rlk generate` writes into its lines.
    for (const char* other : {"prompt", "sample", "logp", "truncated"})
      line.find(other, JsonReader::Key::optional);
    line.refuse_unknown_keys();
    return s;
  }

  std::vector<int32_t> ids(JsonReader& line) {
    std::vector<int32_t> ids;
    const Json& list = *line.find("ids");
    if (!list.is_array()) {
      line.fail("ids", shown(list), "must be an array of token ids");
      return ids;
    }
    for (const Json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(config_.vocab)) {
        line.fail("ids[" + std::to_string(ids.size()) + "]", shown(id),
                  "must be a token id below " + std::to_string(config_.vocab));
        break;
      }
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  std::vector<int32_t> encoded(const std::string& text, JsonReader& line) {
    if (!tokenizer_) tokenizer_.emplace(tokenizer_file_);  // its defects are no line's
    std::vector<int32_t> ids;
    succeeds([&] { ids = tokenizer_->encode(text, line.where("text")); });
    for (const int32_t id : ids)
      if (id >= config_.vocab) {
        line.fail("text", "has token id " + std::to_string(id),
                  "the model's vocabulary ends at " + std::to_string(config_.vocab - 1));
        break;
      }
    return ids;
  }

  const ModelConfig& config_;
  const std::filesystem::path& tokenizer_file_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<Diagnostic> defects_;
};

}  // namespace

std::vector<Sample> read_score_lines(std::istream& in, const std::string& source,
                                     const ModelConfig& config,
                                     const std::filesystem::path& tokenizer) {
  return LineReader(config, tokenizer).read(in, source);
}

}  // namespace rlk
