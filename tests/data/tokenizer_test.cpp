#include "rlk/data/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <sstream>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/data/tokenize.h"

namespace rlk {
namespace {

const std::string kTiny = RLK_SOURCE_DIR "/profiles/tiny/tokenizer.json";

const Tokenizer& tiny() {
  static const Tokenizer tokenizer{std::filesystem::path(kTiny)};
  return tokenizer;
}

Json tiny_json() {
  static const Json json = parse_json(read_file(kTiny), kTiny);
  return json;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_of_json(const Json& json) {
  return error_of([&] { Tokenizer(json.dump(), "t.json"); });
}

TEST(Tokenizer, EqualsTheReferenceOnEveryVector) {
  const std::string file = RLK_SOURCE_DIR "/tests/data/tokenizer_vectors.json";
  const Json vectors = parse_json(read_file(file), file);
  ASSERT_GE(vectors.size(), 80u);
  for (const Json& v : vectors) {
    const auto ids = v["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tiny().encode(v["text"].get<std::string>()), ids) << v["text"];
    EXPECT_EQ(tiny().decode(ids), v["decoded"].get<std::string>()) << v["text"];
  }
}

TEST(Tokenizer, AddedTokensAreMatchedLongestFirstAndNeverNormalized) {
  const int32_t eos = tiny().id_of("<|endoftext|>");
  ASSERT_GE(eos, 0);
  const std::vector<int32_t> ids = tiny().encode("<|endoftext|><|endoftext|>");
  EXPECT_EQ(ids, (std::vector<int32_t>{eos, eos}));
  EXPECT_TRUE(tiny().is_special(eos));
  EXPECT_EQ(tiny().decode(ids, true), "");
  EXPECT_FALSE(tiny().is_special(tiny().id_of("<think>")));
  Json json = tiny_json();
  json["added_tokens"].push_back({{"id", 500}, {"content", "<think>x"}, {"special", false}});
  const Tokenizer longer(json.dump(), "t.json");
  EXPECT_EQ(longer.encode("<think>x"), (std::vector<int32_t>{500}));
  EXPECT_EQ(longer.decode(std::vector<int32_t>{450, 500, 7777, -1}), "<think>x");  // 450: a hole
}

TEST(Tokenizer, NormalizationKeepsTheCodePointBeforeTheTrailingJamo) {
  // U+1100 U+1161 compose to U+AC00; U+11A7 composes with nothing, U+11A8 does.
  EXPECT_EQ(tiny().decode(tiny().encode("\u1100\u1161\u11a7")), "\uac00\u11a7");
  EXPECT_EQ(tiny().decode(tiny().encode("\u1100\u1161\u11a8")), "\uac01");
}

TEST(Tokenizer, StreamingGivesTheSameTextAsDecodingAtOnce) {
  const std::string text = "né 日本 👩‍👩‍👧 \\boxed{7}";
  std::vector<int32_t> ids = tiny().encode(text);
  ids.push_back(tiny().encode("日")[0]);  // an unfinished character
  StreamDecoder stream(tiny());
  std::string pieces;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    pieces += piece;
  }
  EXPECT_EQ(pieces, text);
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(tiny().decode(ids), text + "\xEF\xBF\xBD");
}

TEST(Tokenizer, RefusesInvalidUtf8ByPosition) {
  EXPECT_EQ(error_of([] { tiny().encode("ab\xff"); }), "text: invalid UTF-8 at byte 2");
  EXPECT_NE(error_of([] { tiny().encode("\xed\xa0\x80"); }), "accepted");
  EXPECT_EQ(error_of([] { tiny().encode(std::string("a\0b", 3)); }), "accepted");
}

TEST(Tokenizer, LongPiecesTakeLinearithmicTime) {
  const std::string text(2'000'000, 'x');
  const std::clock_t start = std::clock();
  EXPECT_EQ(tiny().encode(text).size(), text.size());
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

TEST(Tokenizer, AcceptsMergesInTheOlderSpelling) {
  Json json = tiny_json();
  for (Json& merge : json["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer older(json.dump(), "t.json");
  EXPECT_EQ(older.encode("How many apples?"), tiny().encode("How many apples?"));
}

TEST(Tokenizer, RefusesByNameWhatItDoesNotSupport) {
  struct Case {
    const char* pointer;
    Json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"/truncation",
       {{"max_length", 5}},
       "t.json: truncation: {\"max_length\":5} is not supported"},
      {"/normalizer/type", "NFKC", "normalizer.type: \"NFKC\" is not supported; must be NFC"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}, "normalizer.type"},
      {"/extra", 1, "t.json: extra: is not supported"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer.type: \"Whitespace\""},
      {"/pre_tokenizer", nullptr, "pre_tokenizer: must be an object"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "pre_tokenizer[0].behavior"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "pre_tokenizer[0].invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern.Regex: is missing"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true,
       "pre_tokenizer[1].add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", true, "pre_tokenizer[1].use_regex"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "post_processor.type"},
      {"/decoder", {{"type", "Metaspace"}}, "decoder.type"},
      {"/model/type", "Unigram", "model.type: \"Unigram\" is not supported; must be BPE"},
      {"/model/dropout", 0.1, "model.dropout: 0.1"},
      {"/model/unk_token", "<unk>", "model.unk_token"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/ignore_merges", true, "model.ignore_merges"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/vocab", Json::array(), "model.vocab: must be an object"},
      {"/model/vocab/new", 5, "id 5 belongs to another token"},
      {"/model/vocab/new", -1, "-1 is not an id"},
      {"/model/vocab/new", 4294967296, "4294967296 is not an id"},
      {"/model/vocab/new", 1.5, "1.5 is not an id"},
      {"/model/merges/0", "nospace", "model.merges[0]: \"nospace\" is not a pair"},
      {"/model/merges/0", {"a", "zz"}, "names a token that the vocabulary lacks"},
      {"/model/merges/0", 7, "model.merges[0]: must be a string"},
      {"/added_tokens/0/lstrip", true, "added_tokens[0].lstrip"},
      {"/added_tokens/0/rstrip", true, "added_tokens[0].rstrip"},
      {"/added_tokens/0/single_word", true, "added_tokens[0].single_word"},
      {"/added_tokens/0/normalized", true, "added_tokens[0].normalized"},
      {"/added_tokens/0/special", 1, "added_tokens[0].special"},
      {"/added_tokens/0/id", 3, "id 3 belongs to another token"},
      {"/added_tokens/0/content", "", "added_tokens[0].content: is empty"},
      {"/added_tokens/1/content", "<|endoftext|>", "added_tokens[1].id"},
      {"/added_tokens/0/content", "a", "the vocabulary gives this token the id"},
  };
  for (const Case& c : cases) {
    Json json = tiny_json();
    json[Json::json_pointer(c.pointer)] = c.value;
    const std::string text = error_of_json(json);
    EXPECT_NE(text.find(c.expected), std::string::npos) << c.pointer << ": " << text;
  }
  Json repeated = tiny_json();
  repeated["model"]["merges"].push_back(repeated["model"]["merges"][0]);
  EXPECT_NE(error_of_json(repeated).find("repeats an earlier merge"), std::string::npos);
  Json bare = tiny_json();
  bare["model"]["vocab"].erase("a");
  EXPECT_NE(error_of_json(bare).find("lacks byte 97"), std::string::npos) << error_of_json(bare);
  EXPECT_NE(error_of([] { Tokenizer("[]", "t.json"); }).find("t.json: must be"), std::string::npos);
  EXPECT_NE(error_of([] { Tokenizer(std::filesystem::path("/nonexistent")); }), "accepted");
}

// transformers 5 writes them into what it saves.
TEST(Tokenizer, SwitchesOfTheDecoderMeanNothingThoseOfThePreTokenizerDo) {
  Json json = tiny_json();
  for (const char* key : {"use_regex", "add_prefix_space", "trim_offsets"})
    json["decoder"][key] = json["post_processor"][key] = true;
  const Tokenizer saved(json.dump(), "t.json");
  const std::string text = "I'll buy 3 apples";
  EXPECT_EQ(saved.encode(text), tiny().encode(text));
  EXPECT_EQ(saved.decode(saved.encode(text)), text);
  json["pre_tokenizer"]["pretokenizers"][1].erase("use_regex");
  EXPECT_EQ(error_of_json(json), "t.json: pre_tokenizer[1].use_regex: is missing");
}

TEST(Tokenizer, RefusesPatternsThatTheLibrariesReadDifferently) {
  for (const char* pattern :
       {"(",       "",       "a*",          "\\w+", "\\d",     "\\h",   "\\K",       "\\1",
        "[\\S]",   "[a&&b]", "[[:alpha:]]", "[]a]", "(?<n>a)", "(?R)",  "(*ACCEPT)", "a{1,2}+",
        "\\p{Lu}", "\\pL",   "[a",          "\\",   "(?i)a",   "(?#c)a"}) {
    Json json = tiny_json();
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
    EXPECT_NE(error_of_json(json).find("t.json: pre_tokenizer[0].pattern.Regex: "),
              std::string::npos)
        << pattern << ": " << error_of_json(json);
  }
}

TEST(Tokenizer, HostilePatternIsAnErrorNotAHang) {
  Json json = tiny_json();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:(?:a+)+)+[bc]";
  const Tokenizer tokenizer(json.dump(), "t.json");
  const std::string text = error_of([&] { tokenizer.encode(std::string(5000, 'a'), "f:7"); });
  EXPECT_EQ(text.find("f:7: t.json: pre_tokenizer[0].pattern.Regex: PCRE2: match limit"), 0u)
      << text;
}

TEST(Tokenize, TranslatesLinesBothWays) {
  std::istringstream in("{\"text\": \"How many?\"}\n{\"text\": \"\"}\n");
  std::ostringstream ids, text;
  tokenize_lines(tiny(), false, in, "in", ids);
  std::istringstream back(ids.str());
  tokenize_lines(tiny(), true, back, "in", text);
  EXPECT_EQ(text.str(), "{\"text\":\"How many?\"}\n{\"text\":\"\"}\n");
}

TEST(Tokenize, ErrorsNameTheLine) {
  const auto error_of_lines = [](const std::string& lines, bool decode) {
    return error_of([&] {
      std::istringstream in(lines);
      std::ostringstream out;
      tokenize_lines(tiny(), decode, in, "in", out);
    });
  };
  EXPECT_EQ(error_of_lines("{\"text\":\"a\"}\n{\"txt\":1}\n", false).find("in:2: "), 0u);
  // 418 is the last added token.
  EXPECT_EQ(error_of_lines("{\"ids\":[413,418]}", true), "accepted");
  for (const std::string id : {"-1", "419", "2147483648", "1.0", "\"1\""})
    EXPECT_EQ(error_of_lines("{\"ids\":[1," + id + "]}", true),
              "in:1: ids[1]: " + id + "; must be the id of a token");
  EXPECT_EQ(error_of_lines("{\"text\":\"\"}\n{\"text\":", false).find("in:2:9: "), 0u)
      << error_of_lines("{\"text\":\"\"}\n{\"text\":", false);
}

}  // namespace
}  // namespace rlk
