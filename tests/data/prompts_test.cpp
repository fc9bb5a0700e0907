#include "rlk/data/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "data/temp_dir.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/sha256.h"
#include "rlk/data/chat.h"

namespace rlk {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer{
      std::filesystem::path(RLK_SOURCE_DIR "/profiles/tiny/tokenizer.json")};
  return tokenizer;
}

PromptOptions plain() {
  PromptOptions options;
  options.chat_template = false;
  return options;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_of(const std::string& lines, const PromptOptions& options) {
  return error_of([&] { PromptSet(lines, "f.jsonl", options, tiny()); });
}

TEST(Chat, EqualsTheTemplateOnEveryVector) {
  const std::string file = RLK_SOURCE_DIR "/tests/data/chat_vectors.json";
  const std::map<std::string, Role> roles = {
      {"system", Role::system}, {"user", Role::user}, {"assistant", Role::assistant}};
  const Json vectors = parse_json(read_file(file), file);
  ASSERT_GE(vectors.size(), 60u);
  for (const Json& v : vectors) {
    std::vector<ChatMessage> messages;
    for (const Json& m : v["messages"]) {
      ChatMessage message{roles.at(m["role"]), m["content"], {}};
      if (m.contains("reasoning_content") && !m["reasoning_content"].is_null())
        message.reasoning = m["reasoning_content"].get<std::string>();
      messages.push_back(message);
    }
    EXPECT_EQ(render_chat(messages, v["add_generation_prompt"], v["enable_thinking"]),
              v["text"].get<std::string>())
        << v["messages"];
  }
}

TEST(Chat, RefusesAModelWithAnotherTemplate) {
  const TempDir dir;
  EXPECT_EQ(error_of([&] { check_chat_template(dir.path()); }), "accepted");
  write_file_atomic(dir / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(error_of([&] { check_chat_template(dir.path()); }), "accepted");
  write_file_atomic(dir / "tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  EXPECT_NE(error_of([&] { check_chat_template(dir.path()); }).find("is not Qwen3's chat template"),
            std::string::npos);
  write_file_atomic(dir / "tokenizer_config.json", "{}");
  write_file_atomic(dir / "chat_template.jinja", "x");
  EXPECT_NE(error_of([&] { check_chat_template(dir.path()); }).find("chat_template.jinja: is not"),
            std::string::npos);
}

TEST(Prompts, ReadsStringsMessagesAndLabels) {
  const std::string lines =
      R"({"prompt": "How many?", "label": "5", "other": 1})"
      "\n"
      R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], "label": 7})";
  PromptOptions options;
  options.thinking = false;
  const PromptSet set(lines, "f", options, tiny());
  ASSERT_EQ(set.rows(), 2);
  EXPECT_EQ(
      set.text(0),
      "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(
      set.text(1),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
      "<think>\n\n</think>\n\n");
  EXPECT_EQ(set.label(0), "5");
  EXPECT_EQ(set.label(1), "7");
  EXPECT_EQ(set.tokens(0), tiny().encode(set.text(0)));
}

TEST(Prompts, KeysAreConfigurable) {
  PromptOptions options = plain();
  options.prompt_key = "question";
  options.label_key = "";
  EXPECT_EQ(PromptSet(R"({"question": "q"})", "f", options, tiny()).text(0), "q");
}

TEST(Prompts, TheBundledTaskLoads) {
  PromptOptions options = plain();
  options.max_tokens = 64;
  const PromptSet set(std::filesystem::path(RLK_SOURCE_DIR "/profiles/tiny/prompts.jsonl"), options,
                      tiny());
  EXPECT_EQ(set.rows(), 3000);
}

TEST(Prompts, ErrorsNameFileAndLine) {
  const std::string good = "{\"prompt\": \"p\", \"label\": \"l\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"prompt\": ", "f.jsonl:2:12: syntax error"},
      {"", "accepted"},
      {"\n" + good, "f.jsonl:2:1: syntax error"},
      {"{\"prompt\": \"\xff\", \"label\": \"\"}", "f.jsonl:2:13: syntax error"},
      {"{\"prompt\": \"\", \"label\": \"\"}", "f.jsonl:2: prompt: is empty"},
      {"{\"prompt\": [], \"label\": \"\"}", "f.jsonl:2: prompt: is empty"},
      {"{\"label\": \"\"}", "f.jsonl:2: prompt"},
      {"{\"prompt\": \"p\"}", "f.jsonl:2: label"},
      {"{\"prompt\": 5, \"label\": \"\"}", "f.jsonl:2: prompt: 5; must be"},
      {"{\"prompt\": \"p\", \"label\": []}", "f.jsonl:2: label: an array; must be"},
      {"{\"prompt\": \"p\", \"prompt\": \"p\"}", "duplicate key"},
      {"[1]", "f.jsonl:2: "},
      {"{\"prompt\": [{\"role\": \"tool\", \"content\": \"\"}], \"label\": \"\"}",
       "f.jsonl:2: prompt[0].role: \"tool\"; must be system, user or assistant"},
      {"{\"prompt\": [{\"role\": \"user\", \"content\": [1]}], \"label\": \"\"}",
       "f.jsonl:2: prompt[0].content"},
      {"{\"prompt\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}], "
       "\"label\": "
       "\"\"}",
       "accepted"},
      {"{\"prompt\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}], "
       "\"label\": "
       "\"\"}",
       "f.jsonl:2: prompt[0].tool_calls: tools are not supported"},
      {"{\"prompt\": [7], \"label\": \"\"}", "f.jsonl:2: prompt[0]"},
  };
  for (const auto& [line, expected] : cases) {
    const std::string text = error_of(good + line, PromptOptions());
    EXPECT_NE(text.find(expected), std::string::npos) << line << " gives " << text;
  }
  EXPECT_NE(
      error_of("{\"prompt\": [{\"role\": \"user\", \"content\": \"\"}], \"label\": \"\"}", plain())
          .find("must be a string unless the chat template is on"),
      std::string::npos);
  EXPECT_EQ(error_of("", plain()), "f.jsonl: has no prompts");
}

TEST(Prompts, ReportsSeveralDefectsButNotThousands) {
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "{}\n";
  const std::string text = error_of(lines, plain());
  EXPECT_NE(text.find("f.jsonl:3: "), std::string::npos);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 30);
}

TEST(Prompts, RefusesPromptsLongerThanTheContext) {
  PromptOptions options = plain();
  options.max_tokens = 6;
  EXPECT_EQ(error_of("{\"prompt\": \"1 2 3\", \"label\": \"\"}", options), "accepted");
  EXPECT_EQ(error_of("{\"prompt\": \"1 2 3 4\", \"label\": \"\"}", options),
            "f.jsonl:1: the prompt has 7 tokens; must be at most 6");
}

TEST(Prompts, RefusesAnotherFileThanTheHashSaysAndParquet) {
  const TempDir dir;
  const std::string text = "{\"prompt\": \"p\", \"label\": \"\"}\n";
  write_file_atomic(dir / "p.jsonl", text);
  PromptOptions options = plain();
  options.sha256 = hex(sha256(text.data(), text.size()));
  EXPECT_EQ(error_of([&] { PromptSet(dir / "p.jsonl", options, tiny()); }), "accepted");
  options.sha256[0] ^= 1;
  EXPECT_NE(error_of([&] { PromptSet(dir / "p.jsonl", options, tiny()); }).find("SHA-256 is"),
            std::string::npos);
  write_file_atomic(dir / "p.parquet", "PAR1....");
  EXPECT_NE(
      error_of([&] { PromptSet(dir / "p.parquet", plain(), tiny()); }).find("is a Parquet file"),
      std::string::npos);
  EXPECT_NE(error_of([&] { PromptSet(dir / "absent", plain(), tiny()); }).find("absent"),
            std::string::npos);
}

TEST(Cursor, EveryEpochUsesEveryRowAtMostOnce) {
  for (const auto& [rows, per_step] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 1}, {7, 7}, {10, 3}, {3000, 16}, {1025, 5}}) {
    for (const uint64_t seed : {1ull, 1234ull}) {
      std::set<int64_t> seen;
      const int64_t steps = rows / per_step;
      for (int64_t step = steps; step < 2 * steps; ++step) {
        const std::vector<int64_t> used = rows_of_step(seed, step, rows, per_step);
        ASSERT_EQ(static_cast<int64_t>(used.size()), per_step);
        EXPECT_TRUE(std::is_sorted(used.begin(), used.end()));
        for (const int64_t row : used) {
          EXPECT_TRUE(row >= 0 && row < rows) << row;
          EXPECT_TRUE(seen.insert(row).second) << "row " << row << " twice in an epoch of " << rows;
        }
      }
    }
  }
}

TEST(Cursor, DependsOnSeedAndEpochAndIsStable) {
  EXPECT_EQ(rows_of_step(1, 0, 3000, 16), rows_of_step(1, 0, 3000, 16));
  EXPECT_NE(rows_of_step(1, 0, 3000, 16), rows_of_step(2, 0, 3000, 16));
  EXPECT_NE(rows_of_step(1, 0, 3000, 16), rows_of_step(1, 187, 3000, 16));
  // Frozen: a change here changes every run.
  EXPECT_EQ(rows_of_step(1234, 0, 3000, 4), (std::vector<int64_t>{450, 552, 1747, 2165}));
}

TEST(Cursor, RowsAreSpreadEvenly) {
  // First-position rows of 4000 epochs over 8 rows: a fair shuffle gives 500 each, sigma 21.
  std::vector<int> count(8);
  for (int64_t epoch = 0; epoch < 4000; ++epoch) ++count[rows_of_step(5, epoch * 8, 8, 1)[0]];
  for (const int n : count) EXPECT_NEAR(n, 500, 100);
}

TEST(Prompts, SyntheticOnesAreFunctionsOfSeedAndRow) {
  const PromptSet a = PromptSet::synthetic(1, 40, 300), b = PromptSet::synthetic(1, 40, 300),
                  c = PromptSet::synthetic(2, 40, 300);
  ASSERT_GT(a.rows(), 1000);
  std::set<std::vector<int32_t>> seen;
  for (int64_t row : {int64_t{0}, int64_t{1}, a.rows() - 1}) {
    const std::vector<int32_t> ids = a.tokens(row);
    EXPECT_EQ(ids.size(), 40u);
    for (int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 300) << id;
    EXPECT_EQ(ids, b.tokens(row));
    EXPECT_NE(ids, c.tokens(row));
    EXPECT_EQ(a.text(row) + a.label(row), "");
    seen.insert(ids);
  }
  EXPECT_EQ(seen.size(), 3u);
}

}  // namespace
}  // namespace rlk
