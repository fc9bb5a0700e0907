#include "rlk/base/json.h"

#include <gtest/gtest.h>

#include "rlk/base/error.h"

namespace rlk {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_json(text, "f.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Json, KeepsKeyOrderAndValues) {
  const Json json = parse_json(R"({"z": 1, "a": [true, null, -2, 1.5, "x\u00e9"], "m": {}})", "f");
  EXPECT_EQ(json.dump(), R"({"z":1,"a":[true,null,-2,1.5,"xé"],"m":{}})");
}

TEST(Json, ErrorsNameFileLineAndColumn) {
  EXPECT_EQ(error_of("{\n  \"a\": 1,\n  b\n}").find("f.json:3:3: syntax error"), 0u)
      << error_of("{\n  \"a\": 1,\n  b\n}");
  EXPECT_EQ(error_of("").find("f.json:1:1: "), 0u) << error_of("");
  EXPECT_EQ(error_of("[1] 2").find("f.json:1:5: "), 0u) << error_of("[1] 2");
  EXPECT_EQ(error_of("[1e999]").find("f.json:1:"), 0u) << error_of("[1e999]");
}

TEST(Json, ColumnsCountCharacters) {
  EXPECT_EQ(error_of("{\"é\": x}").find("f.json:1:7: "), 0u) << error_of("{\"é\": x}");
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_EQ(error_of("{\"a\": 1,\n \"a\": 2}"), "f.json:2:5: duplicate key \"a\"");
  EXPECT_EQ(error_of(R"({"a": {"x": 1, "x": 1}})"), "f.json:1:19: duplicate key \"x\"");
  EXPECT_EQ(error_of(R"({"a": {"x": 1}, "b": {"x": 1}})"), "accepted");
}

TEST(Json, RefusesInvalidUtf8) {
  for (const std::string bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc3"}) {
    EXPECT_NE(error_of("[\"" + bad + "\"]").find("UTF-8"), std::string::npos)
        << error_of("[\"" + bad + "\"]");
  }
  EXPECT_NE(error_of("[\"\\ud800\"]"), "accepted");
}

TEST(Json, MessagesNeverRepeatTheUsersBytes) {
  const std::string message = error_of("[\"" + std::string(100000, 'a') + "\xff\"]");
  EXPECT_LT(message.size(), 400u);
  EXPECT_EQ(message.find('\xff'), std::string::npos);
}

TEST(Json, RefusesNestingDeeperThan64) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(error_of(std::string(65, '[') + std::string(65, ']')),
            "f.json:1:66: nested deeper than 64");
  EXPECT_NE(error_of(std::string(1000000, '[')).find("nested deeper"), std::string::npos);
}

TEST(Json, ReadsLargeObjectsInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i)
    text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
  EXPECT_EQ(parse_json(text + "}", "f").size(), 200000u);
}

}  // namespace
}  // namespace rlk
