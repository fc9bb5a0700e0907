#include "rlk/data/reward.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <random>

#include "data/temp_dir.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/data/math_answer.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

TEST(MathAnswer, AgreesWithTheTable) {
  const std::string file = RLK_SOURCE_DIR "/tests/data/reward_table.json";
  const Json table = parse_json(read_file(file), file);
  EXPECT_GE(table.size(), 300u);
  for (const Json& row : table) {
    const std::string label = row["label"], answer = row["answer"];
    EXPECT_EQ(math_equal(answer, label), row["equal"].get<bool>()) << label << " | " << answer;
    EXPECT_EQ(math_equal(label, answer), row["equal"].get<bool>())
        << "swapped: " << label << " | " << answer;
    if (row["equal"] != row["math_verify"]) {
      EXPECT_FALSE(row["why"].get<std::string>().empty()) << label << " | " << answer;
    }
    if (!row["sympy"].is_null() && row["sympy"] != row["equal"]) {
      EXPECT_FALSE(row["why_sympy"].get<std::string>().empty()) << label << " | " << answer;
    }
  }
}

TEST(MathAnswer, EveryTextEqualsItselfButTheEmptyOne) {
  for (const char* text :
       {"5", "x", "((", "\\frac", "\\text{a b}", "{", "\xff\xfe", "\\begin{pmatrix}"})
    EXPECT_TRUE(math_equal(text, text)) << text;
  EXPECT_FALSE(math_equal("", ""));
  EXPECT_FALSE(math_equal("$ $", ""));
  EXPECT_FALSE(math_equal("\\frac{1}{0}", "\\frac{2}{0}"));
}

TEST(MathAnswer, WhatIsTooDeepToReadSpoilsNoOtherItem) {
  std::string deep = "1";
  for (int i = 0; i < 20; ++i) deep = "(" + deep + ", 2)";
  std::string tuple = "(";
  for (int i = 0; i < 20; ++i) tuple += deep + ", ";
  EXPECT_TRUE(math_equal(tuple + "0.5)", tuple + "\\frac{1}{2})"));
  EXPECT_FALSE(math_equal(tuple + "0.5)", tuple + "\\frac{1}{3})"));
}

TEST(MathAnswer, HostileInputIsBoundedInTime) {
  std::vector<std::string> hostile;
  for (const std::string part :
       {"(",  "{",      "[",     "\\{",   "\\frac",  "\\sqrt",   "\\frac{1}{",       "2^",   "2^{",
        "9!", "-",      "|",     "1,",    "\\pm 1,", "\\cup",    "\\begin{pmatrix}", "\\\\", "&",
        "x=", "\\log_", "\\sin", "9^{9^", "\\text{", "\\boxed{", "99999999"}) {
    std::string text;
    while (text.size() + part.size() <= 4096) text += part;
    hostile.push_back(text);
    hostile.push_back(text + "1");
  }
  hostile.push_back("9^{9^{9^{9^{9}}}}");
  hostile.push_back("1000!-1000!");
  hostile.push_back("1000000!");
  hostile.push_back("\\binom{1000000000}{500000000}");
  hostile.push_back(std::string(10'000'000, '('));
  for (const std::string& text : hostile) {
    const std::clock_t start = std::clock();  // CPU time: the machine may be busy
    math_equal(text, "1");
    math_equal(text, text + " ");
    boxed_answer("\\boxed{" + text);
    EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC) << text.substr(0, 30);
  }
}

TEST(MathAnswer, RandomTokensNeverCrash) {
  const std::vector<std::string> parts = {"1",
                                          "23",
                                          ".5",
                                          "x",
                                          "e",
                                          "i",
                                          "+",
                                          "-",
                                          "*",
                                          "/",
                                          "^",
                                          "_",
                                          "(",
                                          ")",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "\\{",
                                          "\\}",
                                          "|",
                                          "!",
                                          "%",
                                          ",",
                                          "=",
                                          "<",
                                          "\\leq",
                                          "\\frac",
                                          "\\sqrt",
                                          "\\pi",
                                          "\\pm",
                                          "\\cup",
                                          "\\in",
                                          "\\sin",
                                          "\\log",
                                          "\\text{cm}",
                                          "\\begin{pmatrix}",
                                          "\\end{pmatrix}",
                                          "&",
                                          "\\\\",
                                          " ",
                                          "\\infty",
                                          "\\binom",
                                          "^\\circ",
                                          "\\text",
                                          "\xc3",
                                          "$",
                                          "\\left",
                                          "\\right.",
                                          "cm",
                                          "abc"};
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    std::string a, b;
    for (unsigned k = random() % 14; k > 0; --k) a += parts[random() % parts.size()];
    for (unsigned k = random() % 14; k > 0; --k) b += parts[random() % parts.size()];
    EXPECT_EQ(math_equal(a, b), math_equal(b, a)) << a << " | " << b;
    boxed_answer(a + "\\boxed{" + b + "}");
  }
}

TEST(BoxedAnswer, TakesTheLastBoxAfterTheThinkingPart) {
  EXPECT_EQ(boxed_answer("\\boxed{1} then \\boxed{2}"), "2");
  EXPECT_EQ(boxed_answer("<think>\\boxed{1}</think>so \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(boxed_answer("<think>\\boxed{1}</think>nothing"), std::nullopt);
  EXPECT_EQ(boxed_answer("<think>\\boxed{1}"), std::nullopt);
  EXPECT_EQ(boxed_answer("no answer"), std::nullopt);
  EXPECT_EQ(boxed_answer("\\boxed{1"), std::nullopt);
  EXPECT_EQ(boxed_answer("\\boxed{\\{1\\}}"), "\\{1\\}");
  EXPECT_EQ(boxed_answer("\\boxed 5 $"), "5");
  EXPECT_EQ(boxed_answer("\\boxed"), std::nullopt);
  EXPECT_EQ(boxed_answer("\\boxed{\\"), std::nullopt);
}

TEST(Reward, DeepscalerScoresTheBundledSolutions) {
  const auto reward = make_reward("deepscaler");
  std::vector<RewardRequest> requests;
  std::ifstream lines(RLK_SOURCE_DIR "/profiles/tiny/prompts.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json row = parse_json(line, "prompts");
    RewardRequest r;
    r.response = row["solution"];
    r.label = row["label"];
    requests.push_back(r);
  }
  ASSERT_EQ(requests.size(), 3000u);
  for (const double r : reward->score(requests)) EXPECT_EQ(r, 1.0);
  for (RewardRequest& r : requests) r.label += "1";
  for (const double r : reward->score(requests)) EXPECT_EQ(r, 0.0);
}

TEST(Reward, SyntheticHashIsAFairCoinOfTheTokens) {
  const auto reward = make_reward("synthetic-hash");
  std::vector<RewardRequest> requests(4000);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].tokens = {static_cast<int32_t>(i), 5, 7};
  const std::vector<double> first = reward->score(requests);
  EXPECT_EQ(first, reward->score(requests));
  double sum = 0;
  for (const double r : first) {
    EXPECT_TRUE(r == 0 || r == 1);
    sum += r;
  }
  EXPECT_NEAR(sum, 2000, 200);
  // Frozen values: they are part of runs.
  EXPECT_EQ(std::vector<double>(first.begin(), first.begin() + 8),
            (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 1}));
}

TEST(Reward, UnknownNamesAndMissingProgramsAreRefused) {
  EXPECT_THROW(make_reward("deepscalar"), InputError);
  EXPECT_THROW(make_reward("command:"), InputError);
  EXPECT_THROW(make_reward("command:/nonexistent"), InputError);
  EXPECT_THROW(make_reward("command:/tmp"), InputError);
  EXPECT_TRUE(reward_needs_label("deepscaler"));
  EXPECT_FALSE(reward_needs_label("synthetic-hash"));
}

// A verifier written for the test, as a shell script.
class Command : public testing::Test {
 protected:
  std::unique_ptr<Reward> command(const std::string& script, double seconds = 20) {
    const std::filesystem::path path = dir_ / "verifier";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0755);
    return make_reward("command:" + path.string(), {3, seconds});
  }
  static std::vector<RewardRequest> requests(int n, size_t length) {
    std::vector<RewardRequest> all(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      all[i].prompt_row = 40 + i;
      all[i].label = std::to_string(i);
      all[i].response = "line\n\"quoted\" " + std::string(length, 'x');
    }
    return all;
  }
  std::string error_of(const std::string& script, double seconds = 20) {
    const auto reward = command(script, seconds);
    const auto start = Clock::now();
    try {
      reward->score(requests(5, 100000));  // more than a pipe holds
    } catch (const Error& error) {
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(15));
      return error.what();
    }
    return "accepted";
  }
  TempDir dir_;
};

TEST_F(Command, AnswersKeepTheOrderOfTheSamples) {
  // The reward is the sample's row; earlier rows answer later.
  const auto reward = command(
      "while read -r line; do\n"
      "  id=${line#*:}; id=${id%%,*}\n"
      "  row=${line##*\\\"prompt_row\\\":}; row=${row%%,*}\n"
      "  [ $row -lt 43 ] && sleep 0.2\n"
      "  echo \"{\\\"id\\\": $id, \\\"reward\\\": $row.5}\"\ndone");
  for (int round = 0; round < 2; ++round) {
    const std::vector<double> rewards = reward->score(requests(10, 20));
    for (size_t i = 0; i < rewards.size(); ++i)
      EXPECT_EQ(rewards[i], 40.5 + static_cast<double>(i));
  }
  EXPECT_TRUE(reward->score({}).empty());
}

TEST_F(Command, FailuresAreErrorsThatNameTheSample) {
  const auto expect = [&](const std::string& script, const std::string& part, double seconds = 20) {
    const std::string text = error_of(script, seconds);
    EXPECT_NE(text.find(part), std::string::npos) << script << " gives " << text;
    EXPECT_NE(text.find("prompt 4"), std::string::npos) << text;
  };
  expect("exit 0", "ended");
  expect("read -r line; exit 3", "ended without an answer");
  expect("read -r line; kill -9 $$", "ended without an answer");
  expect("read -r line; echo oops; cat", "answered oops");
  expect("echo loading; echo done; cat", "answered more than one line, the first loading");
  expect("head -c 2000000 /dev/zero; exec sleep 60", ": a line without an end");
  const std::string answer = "read -r line; id=${line#*:}; id=${id%%,*}; ";
  expect("read -r line; echo '{\"reward\": 1}'; cat", "\"reward\": NUMBER}");
  expect("read -r line; echo '{\"id\": 77, \"reward\": 1}'; cat", "\"reward\": NUMBER}");
  expect(answer + "echo \"{\\\"id\\\": $id, \\\"reward\\\": \\\"1\\\"}\"; cat",
         "\"reward\": NUMBER}");
  expect(answer + "echo \"{\\\"id\\\": $id, \\\"reward\\\": 1, \\\"error\\\": 2}\"; cat",
         "NUMBER}");
  expect(answer + "echo \"{\\\"id\\\": $id, \\\"reward\\\": 1e999}\"; cat", "answered");
  // Two answers to one sample: at once, or the second taken for the next sample's.
  const std::string twice = "l=\"{\\\"id\\\": $id, \\\"reward\\\": 1}\"; ";
  expect(answer + twice + "printf '%s\\n%s\\n' \"$l\" \"$l\"; cat >/dev/null",
         "more than one line");
  expect("while true; do " + answer + twice + "echo \"$l\"; sleep 0.1; echo \"$l\"; done",
         "answered");
  expect("read -r line; exec sleep 60", "no answer within 0.3 s", 0.3);
  expect("exec sleep 60", "no answer within 0.3 s", 0.3);
}

TEST_F(Command, AProgramThatCannotRunIsAnError) {
  const std::filesystem::path path = dir_ / "verifier";
  std::ofstream(path) << "#!/nonexistent/interpreter\n";
  chmod(path.c_str(), 0755);
  EXPECT_THROW(make_reward("command:" + path.string())->score(requests(1, 5)), Error);
}

TEST_F(Command, AFailureLeavesNoProcess) {
  error_of("trap '' TERM; echo $$ >> $0.pids; read -r line; exec sleep 60", 0.3);
  std::ifstream pids(dir_ / "verifier.pids");
  int found = 0;
  for (pid_t pid; pids >> pid; ++found) EXPECT_EQ(kill(pid, 0), -1) << pid;
  EXPECT_EQ(found, 3);
}

}  // namespace
}  // namespace rlk
