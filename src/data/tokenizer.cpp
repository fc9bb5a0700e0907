#include "rlk/data/tokenizer.h"

#include <algorithm>
#include <climits>
#include <optional>
#include <unordered_map>

#include "bpe.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "split_pattern.h"
#include "utf8.h"

namespace rlk {
namespace {

constexpr int64_t kMaxTokens = 1 << 20;

// GPT-2's printable stand-ins: printable bytes stand for themselves, the others for U+0100 and up.
struct ByteAlphabet {
  char32_t code_point[256];
  std::unordered_map<char32_t, uint8_t> byte;

  ByteAlphabet() {
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      code_point[b] = printable ? static_cast<char32_t>(b) : next++;
      byte.emplace(code_point[b], static_cast<uint8_t>(b));
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet table;
  return table;
}

// The bytes that a token stands for. A token with a character outside the alphabet stands for its
// own UTF-8 (so does Hugging Face's ByteLevel decoder).
std::string bytes_of(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto it = alphabet().byte.find(next_code_point(token, &at));
    if (it == alphabet().byte.end()) return token;
    bytes.push_back(static_cast<char>(it->second));
  }
  return bytes;
}

std::string brief(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

// Reads one object of the file: every key must be asked for, by name, and have the value that is
// supported.
class Section {
 public:
  Section(const Json& json, std::string where, const char* separator = ".")
      : json_(json), where_(std::move(where)), separator_(separator) {
    if (!json.is_object()) throw InputError(where_, "must be an object, not " + brief(json));
  }

  std::string where(const std::string& key) const { return where_ + separator_ + key; }

  const Json& need(const std::string& key) {
    const Json* value = get(key);
    if (value == nullptr) throw InputError(where(key), "is missing");
    return *value;
  }
  const Json* get(const std::string& key) {
    known_.push_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  // Absent, or one of these values.
  void only(const std::string& key, const std::vector<Json>& allowed) {
    const Json* value = get(key);
    if (value != nullptr && std::find(allowed.begin(), allowed.end(), *value) == allowed.end())
      throw InputError(where(key), brief(*value) + " is not supported");
  }
  void type(const std::string& name) {
    if (need("type") != name)
      throw InputError(where("type"), brief(need("type")) + " is not supported", "must be " + name);
  }
  void no_other_keys() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        throw InputError(where(key.substr(0, 80)), "is not supported");
    }
  }

 private:
  const Json& json_;
  std::string where_;
  const char* separator_;
  std::vector<std::string> known_;
};

std::string string_at(const Json& value, const std::string& where) {
  if (!value.is_string()) throw InputError(where, "must be a string, not " + brief(value));
  return value.get<std::string>();
}

int32_t id_at(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxTokens)
    throw InputError(where, brief(value) + " is not an id",
                     "must be an integer from 0 to " + std::to_string(kMaxTokens - 1));
  return static_cast<int32_t>(value.get<uint64_t>());
}

// As post-processor and decoder its switches change no token and no text; the pre-tokenizer's are
// looked at there.
void check_byte_level(const Json& json, const std::string& where) {
  Section section(json, where);
  section.type("ByteLevel");
  for (const char* key : {"use_regex", "add_prefix_space", "trim_offsets"})
    section.only(key, {false, true});
  section.no_other_keys();
}

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string bytes;
    bool exists = false, special = false;
  };
  std::vector<Token> tokens;  // by id
  std::unordered_map<std::string, int32_t> id_of;
  bool normalize = false;
  std::optional<SplitPattern> pattern;
  std::optional<BpeMerges> merges;
  // Added tokens by first byte, longest first.
  std::array<std::vector<std::pair<std::string, int32_t>>, 256> added;

  Impl(const Json& json, const std::string& file);
  void add_token(const std::string& content, int32_t id, const std::string& where);
  void read_normalizer(const Json& json, const std::string& where);
  void read_pre_tokenizer(const Json& json, const std::string& where);
  void read_model(const Json& json, const std::string& where);
  void read_merges(const Json& json, const std::string& where);
  void read_added_tokens(const Json& json, const std::string& where);

  const std::pair<std::string, int32_t>* added_at(std::string_view text, size_t at) const;
  void encode_plain(std::string_view text, SplitPattern::Scratch* split, BpeScratch* bpe,
                    std::vector<int32_t>* ids) const;
};

// ---------------------------------------------------------------------------------------- the file

Tokenizer::Impl::Impl(const Json& json, const std::string& file) {
  Section top(json, file, ": ");
  top.get("version");
  top.only("truncation", {nullptr});
  top.only("padding", {nullptr});
  if (const Json* normalizer = top.get("normalizer"); normalizer && !normalizer->is_null())
    read_normalizer(*normalizer, top.where("normalizer"));
  read_pre_tokenizer(top.need("pre_tokenizer"), top.where("pre_tokenizer"));
  if (const Json* post = top.get("post_processor"); post && !post->is_null())
    check_byte_level(*post, top.where("post_processor"));
  check_byte_level(top.need("decoder"), top.where("decoder"));
  read_model(top.need("model"), top.where("model"));
  if (const Json* list = top.get("added_tokens"))
    read_added_tokens(*list, top.where("added_tokens"));
  top.no_other_keys();
}

void Tokenizer::Impl::add_token(const std::string& content, int32_t id, const std::string& where) {
  if (content.empty()) throw InputError(where, "is empty");
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  if (tokens[id].exists)
    throw InputError(where, "id " + std::to_string(id) + " belongs to another token");
  tokens[id] = {bytes_of(content), true, false};
  id_of.emplace(content, id);
}

void Tokenizer::Impl::read_normalizer(const Json& json, const std::string& where) {
  Section section(json, where);
  section.type("NFC");
  section.no_other_keys();
  normalize = true;
}

void Tokenizer::Impl::read_pre_tokenizer(const Json& json, const std::string& where) {
  Section sequence(json, where);
  sequence.type("Sequence");
  const Json& parts = sequence.need("pretokenizers");
  sequence.no_other_keys();
  if (!parts.is_array() || parts.size() != 2)
    throw InputError(where, "must hold two pre-tokenizers, a Split and a ByteLevel");
  Section split(parts[0], where + "[0]");
  split.type("Split");
  split.only("behavior", {"Isolated"});
  split.only("invert", {false});
  Section regex(split.need("pattern"), split.where("pattern"));
  pattern.emplace(string_at(regex.need("Regex"), regex.where("Regex")), regex.where("Regex"));
  regex.no_other_keys();
  split.no_other_keys();
  check_byte_level(parts[1], where + "[1]");
  Section byte_level(parts[1], where + "[1]");
  byte_level.only("add_prefix_space", {false});
  byte_level.need("use_regex");  // true where it is absent
  byte_level.only("use_regex", {false});
}

void Tokenizer::Impl::read_model(const Json& json, const std::string& where) {
  Section model(json, where);
  model.type("BPE");
  model.only("dropout", {nullptr});
  model.only("unk_token", {nullptr});
  model.only("continuing_subword_prefix", {nullptr, ""});
  model.only("end_of_word_suffix", {nullptr, ""});
  model.only("fuse_unk", {false});
  model.only("byte_fallback", {false});
  model.only("ignore_merges", {false});
  const Json& vocab = model.need("vocab");
  if (!vocab.is_object()) throw InputError(model.where("vocab"), "must be an object");
  for (const auto& [content, id] : vocab.items()) {
    const std::string at = model.where("vocab") + ": token \"" + content.substr(0, 80) + "\"";
    add_token(content, id_at(id, at), at);
  }
  read_merges(model.need("merges"), model.where("merges"));
  model.no_other_keys();
}

void Tokenizer::Impl::read_merges(const Json& json, const std::string& where) {
  if (!json.is_array()) throw InputError(where, "must be an array");
  std::array<int32_t, 256> byte_ids{};
  for (int b = 0; b < 256; ++b) {
    std::string content;
    append_utf8(alphabet().code_point[b], &content);
    const auto it = id_of.find(content);
    if (it == id_of.end())
      throw InputError(where, "the vocabulary lacks byte " + std::to_string(b));
    byte_ids[b] = it->second;
  }
  merges.emplace(json.size(), byte_ids);
  uint32_t rank = 0;
  for (const Json& item : json) {
    const std::string at = where + "[" + std::to_string(rank) + "]";
    std::string left, right;
    if (item.is_array() && item.size() == 2) {
      left = string_at(item[0], at);
      right = string_at(item[1], at);
    } else {
      const std::string text = string_at(item, at);  // older files: "left right"
      const size_t space = text.find(' ');
      if (space == std::string::npos) throw InputError(at, brief(item) + " is not a pair");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    const auto l = id_of.find(left), r = id_of.find(right), m = id_of.find(left + right);
    if (l == id_of.end() || r == id_of.end() || m == id_of.end())
      throw InputError(at, brief(item) + " names a token that the vocabulary lacks");
    if (!merges->add(l->second, r->second, m->second, rank++))
      throw InputError(at, brief(item) + " repeats an earlier merge");
  }
}

void Tokenizer::Impl::read_added_tokens(const Json& json, const std::string& where) {
  if (!json.is_array()) throw InputError(where, "must be an array");
  for (size_t i = 0; i < json.size(); ++i) {
    Section entry(json[i], where + "[" + std::to_string(i) + "]");
    const std::string content = string_at(entry.need("content"), entry.where("content"));
    const int32_t id = id_at(entry.need("id"), entry.where("id"));
    entry.only("single_word", {false});
    entry.only("lstrip", {false});
    entry.only("rstrip", {false});
    entry.only("normalized", {false});
    const Json& special = entry.need("special");
    if (!special.is_boolean()) throw InputError(entry.where("special"), "must be true or false");
    entry.no_other_keys();
    const auto known = id_of.find(content);
    if (known == id_of.end()) {
      add_token(content, id, entry.where("content"));
    } else if (known->second != id) {
      throw InputError(entry.where("id"),
                       "the vocabulary gives this token the id " + std::to_string(known->second));
    }
    tokens[id].special = special.get<bool>();
    auto& list = added[static_cast<uint8_t>(content[0])];
    if (std::any_of(list.begin(), list.end(), [&](const auto& t) { return t.first == content; }))
      throw InputError(entry.where("content"), "is listed twice");
    list.emplace_back(content, id);
  }
  for (auto& list : added) {
    std::sort(list.begin(), list.end(),
              [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  }
}

// ---------------------------------------------------------------------------------------- encode

const std::pair<std::string, int32_t>* Tokenizer::Impl::added_at(std::string_view text,
                                                                 size_t at) const {
  for (const auto& token : added[static_cast<uint8_t>(text[at])]) {
    if (text.substr(at).starts_with(token.first)) return &token;
  }
  return nullptr;
}

// Text without added tokens: normalize, split, merge.
void Tokenizer::Impl::encode_plain(std::string_view text, SplitPattern::Scratch* split,
                                   BpeScratch* bpe, std::vector<int32_t>* ids) const {
  std::string normalized;
  if (normalize) {
    normalized = nfc(text);
    text = normalized;
  }
  size_t at = 0;
  while (at < text.size()) {
    size_t begin = text.size(), end = text.size();
    pattern->find(text, at, split, &begin, &end);
    if (begin > at) merges->encode(text.substr(at, begin - at), bpe, ids);
    merges->encode(text.substr(begin, end - begin), bpe, ids);
    at = end;
  }
}

Tokenizer::Tokenizer(std::string_view json, const std::string& file)
    : impl_(std::make_unique<Impl>(parse_json(json, file), file)) {}
Tokenizer::Tokenizer(const std::filesystem::path& file)
    : Tokenizer(read_file(file), file.string()) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const std::string& where) const {
  if (text.size() > INT_MAX) throw InputError(where, "is longer than 2 GiB");
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
    throw InputError(where, "invalid UTF-8 at byte " + std::to_string(bad));
  std::vector<int32_t> ids;
  SplitPattern::Scratch split(*impl_->pattern);
  BpeScratch bpe;
  size_t plain = 0;  // where the text since the last added token begins
  const auto encode_until = [&](size_t end) {
    try {
      impl_->encode_plain(text.substr(plain, end - plain), &split, &bpe, &ids);
    } catch (const InputError& error) {  // of the file's pattern, on this text
      throw InputError(where, error.what());
    }
  };
  for (size_t at = 0; at < text.size();) {
    const auto* token = impl_->added_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    encode_until(at);
    ids.push_back(token->second);
    plain = at += token->first.size();
  }
  encode_until(text.size());
  return ids;
}

// ---------------------------------------------------------------------------------------- decode

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(impl_->tokens[id].bytes) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && impl_->tokens[id].special;
}

int32_t Tokenizer::id_of(std::string_view content) const {
  const auto it = impl_->id_of.find(std::string(content));
  return it == impl_->id_of.end() ? -1 : it->second;
}

int32_t Tokenizer::size() const {
  return static_cast<int32_t>(impl_->tokens.size());
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder stream(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return "";
  pending_ += tokenizer_->token_bytes(id);
  std::string text;
  pending_.erase(0, append_lossy_utf8(pending_, true, &text));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  append_lossy_utf8(pending_, false, &text);
  pending_.clear();
  return text;
}

}  // namespace rlk
