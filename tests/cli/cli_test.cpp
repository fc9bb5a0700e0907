// The command line as a user meets it: the real binary, its exit codes and its messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "cli/run_rlk.h"
#include "rlk/base/json.h"
#include "rlk/plan/plan.h"

namespace {

using namespace rlk;
using test::Call;
using test::Finished;
using test::run_rlk;
using test::TempDir;
namespace fs = std::filesystem;

const std::string kTiny = RLK_SOURCE_DIR "/profiles/tiny.json";

void expect_usage_error(const Call& call, const std::vector<std::string>& parts) {
  const Finished f = run_rlk(call);
  EXPECT_EQ(f.code, 2) << f.err;
  EXPECT_EQ(f.out, "");
  for (const std::string& part : parts)
    EXPECT_NE(f.err.find(part), std::string::npos) << part << " not in:\n" << f.err;
}

// The tiny profile under another name, with its own paths.
std::string profile_named(const fs::path& folder, const std::string& file,
                          const std::string& name) {
  Json profile = Json::parse(read_file(kTiny));
  profile["name"] = name;
  for (const char* key : {"model_root", "prompt_data"})
    profile["paths"][key] = RLK_SOURCE_DIR "/profiles/" + profile["paths"][key].get<std::string>();
  fs::create_directories(folder);
  std::ofstream(folder / file) << profile.dump();
  return (folder / file).string();
}

std::string profile_of_plan(const Call& call) {
  const Finished f = run_rlk(call);
  EXPECT_EQ(f.code, 0) << f.err;
  return f.code == 0 ? Json::parse(f.out)["profile"].get<std::string>() : "";
}

}  // namespace

TEST(Cli, HelpAndVersionSucceed) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--help"},
                                               {"help"},
                                               {"help", "verify"},
                                               {"plan", "--help"},
                                               {"compare", "-h"}}) {
    const Finished f = run_rlk({args});
    EXPECT_EQ(f.code, 0);
    EXPECT_NE(f.out, "");
    EXPECT_EQ(f.err, "");
  }
  EXPECT_NE(run_rlk({{"help", "run"}}).out.find("--rollout-tp"), std::string::npos);
  const Finished version = run_rlk({{"--version"}});
  for (const char* part : {"rlk 0.", "revision", "compiler", "-ffp-contract=off"})
    EXPECT_NE(version.out.find(part), std::string::npos) << part << " not in:\n" << version.out;
}

TEST(Cli, NoCommandAndUnknownCommandsAreUsageErrors) {
  EXPECT_EQ(run_rlk({{}}).code, 2);
  expect_usage_error({{"verfy"}}, {"rlk verfy: no such command; the nearest one is verify"});
  expect_usage_error({{"help", "nothing-like-it"}}, {"no such command; rlk --help lists them"});
  expect_usage_error({{"\x1b[31m"}}, {"\\x1b[31m"});
}

TEST(Cli, AllErrorsOfACommandLineAreReportedAtOnce) {
  expect_usage_error(
      {{"verify", "--tp", "3", "--temprature", "1", "stray", "--top-p=2", "--run-id", "../x",
        "--lr"},
       {{"RLK_TOP_K", "0"}}},
      {"rlk: --tp 3: must be 1, 2, 4 or 8 on this profile\n",
       "rlk: --temprature: unknown option; the nearest one is --temperature\n",
       "rlk: \"stray\": unexpected argument\n", "rlk: --top-p 2: must be",
       "rlk: --run-id ../x: must be", "rlk: --lr: needs a value\n", "rlk: RLK_TOP_K=0: must be"});
}

TEST(Cli, NegativeValuesAndAliasesAreTaken) {
  const Finished f = run_rlk(
      {{"plan", "verify", "--top-k", "-1", "--tp-size", "8", "--rollouts=3", "--format", "json"}});
  ASSERT_EQ(f.code, 0) << f.err;
  const Json plan = Json::parse(f.out);
  EXPECT_EQ(plan["topology"]["tp"], 8);
  EXPECT_EQ(plan["topology"]["cp"], 1);
  EXPECT_EQ(plan["steps"], 3);
}

TEST(Cli, AnOptionWithoutItsValueHidesNoOtherError) {
  expect_usage_error({{"plan", "--lr=", "--top-p", "2", "--temprature=", "--seed"}},
                     {"rlk: --lr: needs a value\n", "rlk: --top-p 2: must be",
                      "rlk: --temprature=: unknown option; the nearest one is --temperature\n",
                      "rlk: --seed: needs a value\n"});
  const Finished f = run_rlk({{"validate", "--run-dir", "/nowhere", "--format="}});
  EXPECT_EQ(f.err, "rlk: --format: needs a value\n");
}

TEST(Cli, AFlagTakesNoValue) {
  TempDir dir;
  const std::string root = (dir.path() / "runs").string();
  for (const std::string value : {"=-1", "=false", "=2", "=", "=maybe"})
    expect_usage_error({{"verify", "--output-root", root, "--dry-run" + value}},
                       {"rlk: --dry-run" + value + ": takes no value\n"});
  EXPECT_FALSE(fs::exists(root));
}

TEST(Cli, EveryNumberOfABenchIsReadAsItStands) {
  expect_usage_error(
      {{"bench", "decode", "--context", "010x", "--steps", "0x10", "--look-ahead", "1e3", "--top-k",
        "2147483648", "--top-p", "nan", "--temperature", "1e39", "--batch", "1,,8"}},
      {"rlk: --context 010x: must be an integer", "rlk: --steps 0x10: must be an integer",
       "rlk: --look-ahead 1e3: must be an integer",
       "rlk: --top-k 2147483648: must be an integer from -2147483648 to 2147483647\n",
       "rlk: --top-p nan: must be a number\n", "rlk: --temperature 1e39: must be a number\n",
       "rlk: --batch 1,,8: must be integers with commas between them\n"});
  for (const char* list : {"", ",", "1,", "a", "1 8"})
    expect_usage_error({{"bench", "decode", "--shape", "none", "--batch", list}},
                       {"--batch", "must be integers"});
  expect_usage_error({{"bench", "decode", "--shape", "none", "--batch", "1", "8"}},
                     {"\"8\": unexpected argument"});
  // Ten, not eight: eight were less than half of the steps.
  const Finished f = run_rlk({{"bench", "decode", "--shape", "none", "--steps", "18",
                               "--look-ahead", "2", "--context", "010"}});
  EXPECT_EQ(f.err.find("--context"), std::string::npos) << f.err;
}

TEST(Cli, BehindTwoDashesEveryWordIsBare) {
  expect_usage_error({{"plan", "--", "verify", "--tp"}}, {"rlk: \"--tp\": unexpected argument\n"});
  expect_usage_error({{"compare", "--", "-a", "-b"}}, {"-a"});
}

TEST(Cli, PlanStartsNothingAndIsByteStable) {
  TempDir dir;
  const Call text{{"plan", "verify", "--output-root", (dir.path() / "runs").string()}};
  const Finished a = run_rlk(text), b = run_rlk(text);
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out.find("verify-<UTC>-<4 hex>"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir.path() / "runs"));
  const Finished json = run_rlk({{"plan", "verify", "--format", "json"}});
  EXPECT_EQ(plan_to_json(plan_from_json(json.out)), json.out);
}

TEST(Cli, TheProfileIsLookedUpInOrder) {
  TempDir dir;
  const std::string a = profile_named(dir.path() / "a", "p.json", "by-option");
  const std::string b = profile_named(dir.path() / "b", "p.json", "by-variable");
  const std::string c = profile_named(dir.path() / "c", "p.json", "by-known-variable");
  profile_named(dir.path() / "cwd", ".rlk-profile.json", "by-folder");
  Call call{{"plan", "--format", "json"}};
  EXPECT_EQ(profile_of_plan(call), "tiny");
  call.folder = dir.path() / "cwd";
  EXPECT_EQ(profile_of_plan(call), "by-folder");
  call.environment["RLK_REPRO_PROFILE"] = c;
  EXPECT_EQ(profile_of_plan(call), "by-known-variable");
  call.environment["RLK_PROFILE"] = b;
  EXPECT_EQ(profile_of_plan(call), "by-variable");
  call.args.insert(call.args.end(), {"--profile", a});
  EXPECT_EQ(profile_of_plan(call), "by-option");
}

TEST(Cli, RlkHomeMovesTheBundledProfile) {
  TempDir dir;
  profile_named(dir.path() / "profiles", "tiny.json", "moved");
  EXPECT_EQ(profile_of_plan({{"plan", "--format", "json"}, {{"RLK_HOME", dir.path().string()}}}),
            "moved");
}

TEST(Cli, AMissingOrHostileProfileIsAUsageError) {
  TempDir dir;
  expect_usage_error({{"plan", "--profile", "/nowhere.json", "--tp", "5"}},
                     {"/nowhere.json: No such file or directory", "--tp 5"});
  for (const char* text : {"", "[]", "{", "{\"name\": \"\xff\"}", "{\"a\":1,\"a\":2}"}) {
    std::ofstream(dir.path() / "p.json") << text;
    expect_usage_error({{"plan", "--profile", (dir.path() / "p.json").string()}}, {"p.json"});
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::ofstream(dir.path() / "p.json") << deep;
  expect_usage_error({{"plan", "--profile", (dir.path() / "p.json").string()}}, {"p.json"});
}

TEST(Cli, AnExistingRunIdIsRefusedAndLeftAlone) {
  TempDir dir;
  fs::create_directories(dir.path() / "taken");
  std::ofstream(dir.path() / "taken" / "note") << "mine";
  expect_usage_error({{"verify", "--output-root", dir.path().string(), "--run-id", "taken"}},
                     {"a run id is never reused"});
  EXPECT_EQ(read_file(dir.path() / "taken" / "note"), "mine");
}

TEST(Cli, DamagedInputsAreFoundBeforeAnythingStarts) {
  TempDir dir;
  const fs::path model = dir.path() / "model";
  fs::copy(RLK_SOURCE_DIR "/profiles/tiny", model);
  std::ofstream(model / "tokenizer.json") << "{}";
  std::ofstream(model / "model.safetensors") << "not one";
  std::ofstream(dir.path() / "prompts.jsonl") << "{\"prompt\": \"\"}\n";
  const Call call{{"verify", "--model-root", model.string(), "--prompt-data",
                   (dir.path() / "prompts.jsonl").string(), "--output-root",
                   (dir.path() / "runs").string()}};
  expect_usage_error(call, {"tokenizer.json", "model.safetensors"});
  EXPECT_FALSE(fs::exists(dir.path() / "runs"));
}

TEST(Cli, AFullDiskBehindStdoutIsAFailure) {
  const Finished f = run_rlk({{"plan"}, {}, {}, "/dev/full"});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("stdout"), std::string::npos) << f.err;
}

TEST(Cli, ATerminalThatIsGoneIsNoCrash) {
  const Finished f = run_rlk({{"plan", "--tp", "3"}, {}, {}, "", "/dev/full"});
  EXPECT_EQ(f.signal, 0);
  EXPECT_EQ(f.code, 2);
  const int status = std::system(RLK_BINARY " plan <&- >&- 2>&-");
  ASSERT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 1) << "the plan went nowhere";
}

TEST(Cli, WhatAFileSaysReachesTheTerminalEscaped) {
  TempDir dir;
  std::ofstream(dir.path() / "config.json") << R"({"\u001b[31m": 1, "\u001b[31m": 2})";
  const Finished f = run_rlk({{"plan", "--model-root", dir.path().string()}});
  EXPECT_NE(f.err.find("duplicate key \"\\x1b[31m\""), std::string::npos) << f.err;
}

TEST(Cli, AFileFullOfErrorsDoesNotFillTheScreen) {
  TempDir dir;
  const fs::path model = dir.path() / "model";
  fs::copy(RLK_SOURCE_DIR "/profiles/tiny", model);
  fs::remove(model / "model.safetensors");
  Json index;
  for (int i = 0; i < 1000; ++i) index["weight_map"]["t" + std::to_string(i)] = "../elsewhere";
  std::ofstream(model / "model.safetensors.index.json") << index.dump();
  const Finished f = run_rlk({{"verify", "--dry-run", "--model-root", model.string()}});
  EXPECT_EQ(f.code, 2);
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 51) << f.err;
  EXPECT_NE(f.err.find("rlk: and 950 errors more\n"), std::string::npos) << f.err;
}

TEST(Cli, InspectingWhatIsNoRunIsAUsageError) {
  expect_usage_error({{"validate"}}, {"--run-dir: missing"});
  expect_usage_error({{"validate", "--run-dir", "/nowhere"}}, {"/nowhere"});
  expect_usage_error({{"compare", "/nowhere"}}, {"a run directory is missing"});
  expect_usage_error({{"compare", "/nowhere", "/nowhere"}}, {"/nowhere"});
  expect_usage_error({{"debug"}}, {"a run directory is missing"});
}

TEST(Cli, BenchRunsEveryEngineOnASyntheticModel) {
  const std::string shape = RLK_SOURCE_DIR "/profiles/tiny/config.json";
  for (const std::string engine : {"score", "train", "step"}) {
    const Finished f =
        run_rlk({{"bench", engine, "--backend", "cpu", "--shape", shape, "--sequences", "2",
                  "--prompt", "5", "--response", "20", "--repeat", "1"}});
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find(engine + " " + shape + ": 2 x 25 tokens"), std::string::npos) << f.out;
  }
  const Finished ops =
      run_rlk({{"bench", "train", "--backend", "cpu", "--shape", shape, "--sequences", "1",
                "--response", "20", "--by-op", "--activation-gib", "0"}});
  EXPECT_EQ(ops.code, 0) << ops.err;
  for (const char* op : {"gemm_wgrad", "attention_bwd_dq", "all ops"})
    EXPECT_NE(ops.out.find(op), std::string::npos) << ops.out;
  expect_usage_error({{"bench", "decoder"}}, {"\"decoder\"", "score, train or step"});
  expect_usage_error({{"bench", "train", "--backend", "cpu", "--shape", shape, "--response", "0"}},
                     {"--response: 0"});
  expect_usage_error({{"bench", "train", "--shape", "qwen3-9b"}}, {"qwen3-9b"});
}

// Its tokens with look-ahead are compared with those drawn one step at a time.
TEST(Cli, BenchDecodeRunsTheEngineOnTheCpu) {
  TempDir dir;
  const std::string csv = (dir.path() / "decode.csv").string();
  const Finished f =
      run_rlk({{"bench", "decode", "--backend", "cpu", "--shape",
                RLK_SOURCE_DIR "/profiles/tiny/config.json", "--batch", "1,3", "--context", "24",
                "--steps", "16", "--look-ahead", "4", "--csv", csv}});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("batch 3"), std::string::npos) << f.out;
  EXPECT_NE(read_file(csv).find("batch=3 context=24,"), std::string::npos) << read_file(csv);
}

TEST(Cli, BenchDecodeReportsAllOfItsBadValues) {
  expect_usage_error({{"bench", "decode", "--backend", "gpu", "--batch", "0", "--steps", "9"}},
                     {"--backend", "gpu", "--batch", "--steps", "9"});
}
