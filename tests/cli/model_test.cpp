// score, generate and export on what runs leave behind: the same tokens, the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/processes.h"
#include "cli/run_rlk.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/run/run_reader.h"

namespace {

using namespace rlk;
using test::Finished;
using test::run_rlk;
using test::TempDir;
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

const std::string kTiny = RLK_SOURCE_DIR "/profiles/tiny";
constexpr int kSamples = 4, kLength = 24;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Runs in three ways of sampling; made once, read by all tests.
class Model : public ::testing::Test {
 protected:
  struct Run {
    std::string name;
    Arguments sampling;
  };
  static const std::vector<Run>& runs() {
    static const std::vector<Run> all = {
        {"plain", {}},
        {"limited", {"--temperature", "0.8", "--top-p", "0.9", "--top-k", "20"}},
        {"greedy", {"--temperature", "0"}}};
    return all;
  }

  static void SetUpTestSuite() {
    dir_ = new TempDir;
    std::ifstream bundled(kTiny + "/prompts.jsonl");
    std::ofstream prompts(prompts_file());
    std::string line;
    for (int i = 0; i < 6 && std::getline(bundled, line); ++i) prompts << line << '\n';
    prompts.close();
    for (const Run& run : runs()) {
      const Finished f =
          run_rlk({Arguments{"verify", "--output-root", dir_->path().string(), "--run-id", run.name,
                             "--prompt-data", prompts_file(), "--rollout-batch-size", "3",
                             "--samples-per-prompt", std::to_string(kSamples), "--max-response-len",
                             std::to_string(kLength), "--save-interval", "1"} +
                   run.sampling});
      ASSERT_EQ(f.code, 0) << f.err << f.out;
    }
  }
  static void TearDownTestSuite() { delete dir_; }

  static std::string prompts_file() { return (dir_->path() / "prompts.jsonl").string(); }
  static fs::path run_dir(const std::string& name) { return dir_->path() / name; }
  static std::string checkpoint(const std::string& run, uint64_t version) {
    return (run_dir(run) / RunReader::checkpoint_path(version)).string();
  }
  static Trajectory step(const std::string& run, int64_t s) {
    return RunReader(run_dir(run)).sidecar(s);
  }

  TempDir scratch_;
  std::string path(const std::string& name) const { return (scratch_.path() / name).string(); }
  static TempDir* dir_;
};
TempDir* Model::dir_ = nullptr;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

void expect_refused(const Arguments& args, const std::vector<std::string>& parts) {
  const Finished f = run_rlk({args});
  EXPECT_EQ(f.code, 2) << f.err;
  for (const std::string& part : parts)
    EXPECT_NE(f.err.find(part), std::string::npos) << part << " not in:\n" << f.err;
}

void flip_last_bit(const fs::path& file) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(f.get() ^ 1);
  f.seekp(-1, std::ios::end);
  f.put(byte);
}

}  // namespace

TEST_F(Model, ScoreGivesARunsOwnTokensTheBitsThatItRecorded) {
  for (const Run& run : runs()) {
    for (int64_t s = 0; s < 2; ++s) {
      const Trajectory recorded = step(run.name, s);
      std::vector<float> rollout, train;
      std::ofstream in(path("in.jsonl"));
      for (const Sample& sample : recorded.samples) {
        in << Json{{"ids", sample.tokens}, {"prompt_len", sample.prompt_len}} << '\n';
        rollout.insert(rollout.end(), sample.rollout_logp.begin(), sample.rollout_logp.end());
        train.insert(train.end(), sample.train_logp.begin(), sample.train_logp.end());
      }
      in.close();
      const std::string model = s == 0 ? kTiny : checkpoint(run.name, static_cast<uint64_t>(s));
      const Arguments score =
          Arguments{"score", "--model", model, "--in", path("in.jsonl")} + run.sampling;
      const std::string what = run.name + " step " + std::to_string(s);
      const std::string out = path(run.name + "-" + std::to_string(s) + ".safetensors");
      ASSERT_EQ(run_rlk({score + Arguments{"--out", out}}).code, 0) << what;
      const SafetensorsFile file(out);
      const TensorInfo& info = *file.find("logp");
      const auto* data = reinterpret_cast<const float*>(file.data(info));
      const std::vector<float> tensors(data, data + info.elements());
      expect_same_bits(tensors, rollout, what);
      expect_same_bits(tensors, train, what);
      std::vector<float> text;
      for (const Json& line : lines_of(run_rlk({score}).out))
        for (const Json& x : line["logp"]) text.push_back(static_cast<float>(x.get<double>()));
      expect_same_bits(text, rollout, what + ", as lines");
      fs::remove(out);
    }
  }
}

TEST_F(Model, ADifferentModelGivesOtherBits) {
  std::ofstream(path("in.jsonl")) << Json{{"ids", step("plain", 0).samples[0].tokens}};
  const auto score = [&](const std::string& model) {
    return run_rlk({{"score", "--model", model, "--in", path("in.jsonl")}}).out;
  };
  EXPECT_NE(score(kTiny), score(checkpoint("plain", 2)));
}

TEST_F(Model, ATokenOutsideOfTheSupportIsNull) {
  Sample sample = step("limited", 0).samples[0];
  sample.tokens.back() = sample.tokens.back() == 7 ? 8 : 7;
  std::ofstream(path("in.jsonl")) << Json{{"ids", sample.tokens},
                                          {"prompt_len", sample.tokens.size() - 1}};
  const Finished f =
      run_rlk({{"score", "--model", kTiny, "--in", path("in.jsonl"), "--top-k", "1"}});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_TRUE(lines_of(f.out).at(0)["logp"][0].is_null()) << f.out;
}

TEST_F(Model, GenerateGivesTheSamplesOfARunsFirstStep) {
  for (const Run& run : runs()) {
    const Finished f = run_rlk(
        {Arguments{"generate", "--model", kTiny, "--prompts", prompts_file(), "--samples",
                   std::to_string(kSamples), "--max-response-len", std::to_string(kLength)} +
         run.sampling});
    ASSERT_EQ(f.code, 0) << f.err;
    const std::vector<Json> lines = lines_of(f.out);
    ASSERT_EQ(lines.size(), 6u * kSamples);
    for (const Sample& sample : step(run.name, 0).samples) {
      const Json& line = lines.at(sample.prompt * kSamples + sample.sample);
      EXPECT_EQ(line["prompt"], sample.prompt);
      EXPECT_EQ(line["sample"], sample.sample);
      EXPECT_EQ(line["ids"].get<std::vector<int32_t>>(), sample.tokens);
      EXPECT_EQ(line["prompt_len"], sample.prompt_len);
      EXPECT_EQ(line["truncated"], sample.truncated);
      std::vector<float> logp;
      for (const Json& x : line["logp"]) logp.push_back(static_cast<float>(x.get<double>()));
      expect_same_bits(logp, sample.rollout_logp, run.name);
    }
    // What was generated can be scored as it is.
    std::ofstream(path("in.jsonl")) << f.out;
    const Finished scored =
        run_rlk({Arguments{"score", "--model", kTiny, "--in", path("in.jsonl")} + run.sampling});
    ASSERT_EQ(scored.code, 0) << scored.err;
    const std::vector<Json> scores = lines_of(scored.out);
    ASSERT_EQ(scores.size(), lines.size());
    for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(scores[i]["logp"], lines[i]["logp"]);
  }
}

TEST_F(Model, OnePromptIsPrintedAsText) {
  const Json row =
      Json::parse(read_file(prompts_file()).substr(0, read_file(prompts_file()).find('\n')));
  const Arguments length = {"--max-response-len", "24", "--samples", "2", "--seed", "9"};
  const Finished text =
      run_rlk({Arguments{"generate", "--prompt", row["prompt"].get<std::string>()} + length});
  ASSERT_EQ(text.code, 0) << text.err;
  const Finished lines = run_rlk({Arguments{"generate", "--prompts", prompts_file()} + length});
  ASSERT_EQ(lines.code, 0) << lines.err;
  std::string expected;
  for (const Json& line : lines_of(lines.out))
    if (line["prompt"] == 0) expected += line["text"].get<std::string>() + "\n";
  EXPECT_EQ(text.out, expected);
}

TEST_F(Model, ExportGivesTheRunsWeightsAndTheSameBytesAgain) {
  const auto same_files = [&](const fs::path& a, const fs::path& b) {
    for (const auto& entry : fs::directory_iterator(a))
      EXPECT_EQ(read_file(entry.path()), read_file(b / entry.path().filename())) << entry.path();
    EXPECT_EQ(std::distance(fs::directory_iterator(a), {}),
              std::distance(fs::directory_iterator(b), {}));
  };
  const Finished newest =
      run_rlk({{"export", "--from", run_dir("plain").string(), "--out", path("a")}});
  ASSERT_EQ(newest.code, 0) << newest.err;
  EXPECT_NE(newest.out.find("version 2: all fingerprints"), std::string::npos) << newest.out;
  EXPECT_NE(newest.out.find("tokenizer.json"), std::string::npos) << newest.out;
  same_files(path("a"), checkpoint("plain", 2));
  EXPECT_EQ(run_rlk({{"export", "--from", path("a"), "--out", path("b")}}).code, 0);
  same_files(path("a"), path("b"));
  EXPECT_EQ(run_rlk({{"export", "--from", run_dir("plain").string(), "--version", "1", "--out",
                      path("c")}})
                .code,
            0);
  const Finished inside =
      run_rlk({{"export", "--from", checkpoint("plain", 1) + "/", "--out", path("d")}});
  EXPECT_NE(inside.out.find("version 1: all fingerprints"), std::string::npos) << inside.out;
  same_files(path("c"), path("d"));
  // The bundled model, which no rlk wrote, keeps its weights.
  ASSERT_EQ(run_rlk({{"export", "--from", kTiny, "--out", path("e")}}).code, 0);
  std::ofstream(path("in.jsonl")) << Json{{"ids", step("plain", 0).samples[0].tokens}};
  EXPECT_EQ(run_rlk({{"score", "--model", kTiny, "--in", path("in.jsonl")}}).out,
            run_rlk({{"score", "--model", path("e"), "--in", path("in.jsonl")}}).out);
}

TEST_F(Model, ExportRefusesWhatTheRunDidNotRecord) {
  const fs::path run = scratch_.path() / "run";
  fs::copy(run_dir("plain"), run, fs::copy_options::recursive);
  const fs::path two = run / RunReader::checkpoint_path(2);
  fs::rename(two, scratch_.path() / "two");
  fs::copy(run / RunReader::checkpoint_path(1), two);
  expect_refused({"export", "--from", run.string(), "--out", path("out")},
                 {"weights/version-000002.json", "has another fingerprint"});
  flip_last_bit(two / "model.safetensors");
  expect_refused({"export", "--from", run.string(), "--out", path("out")},
                 {"model.safetensors: tensor ", "damaged: its SHA-256"});
  write_file_atomic(path("in.jsonl"), "{\"text\": \"1+1\"}\n");
  expect_refused({"score", "--model", two.string(), "--in", path("in.jsonl")},
                 {"model.safetensors: tensor ", "damaged: its SHA-256"});
  expect_refused({"generate", "--model", two.string(), "--prompts", prompts_file()},
                 {"model.safetensors: tensor ", "damaged: its SHA-256"});
  expect_refused({"verify", "--model-root", two.string(), "--output-root", path("runs")},
                 {"model.safetensors: tensor ", "damaged: its SHA-256"});
  expect_refused({"export", "--from", run.string(), "--version", "7", "--out", path("out")},
                 {"--version 7", "there are 1, 2"});
  fs::remove_all(run / "checkpoints");
  expect_refused({"export", "--from", run.string(), "--out", path("out")},
                 {"has no checkpoints", "--save-interval"});
  EXPECT_FALSE(fs::exists(path("out")));
}

// A verifier of the user's own, beside the profile that names it.
class RewardCommand : public ::testing::Test {
 protected:
  Finished verify(const std::string& script) {
    std::ofstream(dir_.path() / "judge") << "#!/bin/sh\nwhile read -r line; do id=${line#*:}; "
                                            "id=${id%%,*}\n"
                                         << script << "\ndone\n";
    fs::permissions(dir_.path() / "judge", fs::perms::owner_all);
    Json profile = Json::parse(read_file(RLK_SOURCE_DIR "/profiles/tiny.json"));
    profile["task"] = {{"reward", "command:judge"}, {"chat_template", true}, {"thinking", false}};
    profile["paths"] = {
        {"model_root", kTiny}, {"prompt_data", kTiny + "/prompts.jsonl"}, {"output_root", "runs"}};
    std::ofstream(dir_.path() / "p.json") << profile.dump();
    return run_rlk(
        {{"verify", "--profile", (dir_.path() / "p.json").string(), "--run-id", "r", "--steps", "1",
          "--rollout-batch-size", "2", "--max-response-len", "8", "--save-interval", "10"}});
  }
  bool sealed() const { return fs::exists(dir_.path() / "runs/r/COMPLETE"); }
  // What a judge started by `sleep 60 >&2 & echo $! >> $0.pids` is gone, or dead and waits for
  // init.
  void expect_no_children() const {
    std::ifstream pids(dir_.path() / "judge.pids");
    int found = 0;
    for (std::string pid; pids >> pid; ++found) {
      const auto gone = [&] {
        const std::string stat = test::text_of("/proc/" + pid + "/stat");
        return stat.empty() || stat.find(") Z ") != stat.npos;
      };
      for (int i = 0; i < 500 && !gone(); ++i) usleep(10'000);  // a busy machine kills slowly
      EXPECT_TRUE(gone()) << pid;
    }
    EXPECT_GT(found, 0);
  }
  TempDir dir_;
};

TEST_F(RewardCommand, DecidesTheRewardsOfARun) {
  const Finished f = verify(
      "sleep 60 >&2 & echo $! >> $0.pids; echo \"{\\\"id\\\": $id, \\\"reward\\\": $((id % "
      "2)).5}\"");
  ASSERT_EQ(f.code, 0) << f.err << f.out;
  expect_no_children();
  const std::vector<Sample> samples = RunReader(dir_.path() / "runs/r").sidecar(0).samples;
  ASSERT_EQ(samples.size(), 16u);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].reward, i % 2 + 0.5) << i;
  const std::string text = read_file(dir_.path() / "runs/r" / RunReader::texts_path(0));
  const Json line = Json::parse(text.substr(0, text.find('\n')));
  EXPECT_TRUE(line["prompt_text"].get<std::string>().ends_with(
      "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"))
      << line["prompt_text"];
  // A run's last version is saved, whatever the interval.
  EXPECT_TRUE(fs::exists(dir_.path() / "runs/r" / RunReader::checkpoint_path(1)));
}

TEST_F(RewardCommand, ThatFailsEndsTheRunByName) {
  const Finished f = verify("sleep 60 >&2 & echo $! >> $0.pids; exit 1");
  EXPECT_EQ(f.code, 1) << f.out;
  EXPECT_NE(f.out.find("judge: prompt "), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("ended without an answer"), std::string::npos) << f.out;
  EXPECT_FALSE(sealed());
  expect_no_children();
}

TEST_F(Model, BadInputIsNamedWithItsPlace) {
  const auto score = [&](const std::string& lines, const std::vector<std::string>& parts) {
    std::ofstream(path("in.jsonl")) << lines;
    expect_refused({"score", "--model", kTiny, "--in", path("in.jsonl")}, parts);
  };
  score("", {"in.jsonl: has no lines"});
  score("{\"ids\": [1, 2]}\n{\"ids\": [1,\n", {"in.jsonl:2"});
  score("[]\n{\"ids\": 3}\n{\"ids\": [1, 99999]}\n{\"ids\": [1]}\n{\"idz\": [1, 2]}\n",
        {"in.jsonl:1", "in.jsonl:2: ids: 3; must be an array", "in.jsonl:3: ids[1]: 99999; must be",
         "in.jsonl:5: ids: missing", "idz"});
  score("{\"ids\": [1]}", {"in.jsonl:1: ids: 1 tokens; nothing is left to score"});
  score("{\"ids\": [1, 2], \"prompt_len\": 0}", {"in.jsonl:1: prompt_len: 0"});
  score("{\"text\": 5}", {"in.jsonl:1: text"});
  fs::copy(kTiny, path("no-tokenizer"));
  fs::remove(path("no-tokenizer/tokenizer.json"));
  std::ofstream(path("in.jsonl")) << "{\"text\": \"1\"}\n{\"text\": \"2\"}\n";
  EXPECT_EQ(run_rlk({{"score", "--model", path("no-tokenizer"), "--in", path("in.jsonl")}}).err,
            "rlk: " + path("no-tokenizer/tokenizer.json") + ": No such file or directory\n");
  expect_refused({"score", "--in", "/nowhere", "--temperature", "-1", "--top-p", "0", "--top-k",
                  "0", "--backend", "tpu", "--threads", "x"},
                 {"--in /nowhere", "--temperature -1", "--top-p 0", "--top-k 0", "--backend tpu",
                  "--threads x"});
  expect_refused({"generate", "--prompt", "x", "--top-k", "99999"},
                 {"--top-k 99999: must be -1 or from 1 to the vocabulary's"});
  for (const std::string cold : {"9e-7", "1e-38", "1e-50"})  // 1 / temperature is not finite below
    expect_refused({"score", "--temperature", cold}, {"--temperature " + cold + ": must be 0 (gr"});
  expect_refused({"generate"}, {"give one of --prompt and --prompts"});
  expect_refused({"generate", "--prompt", "x", "--prompts", "y"}, {"two sources"});
  expect_refused({"generate", "--prompt", "x", "--no-thinking"},
                 {"--no-thinking: ", "profiles/tiny has no chat template"});
  expect_refused({"generate", "--prompt", "x", "--no-thinking", "--raw"}, {"beside --raw"});
  expect_refused({"generate", "--prompt", "\xff"}, {"--prompt: \\xff; must be UTF-8"});
  expect_refused({"generate", "--prompts", "/nowhere"}, {"/nowhere"});
  expect_refused({"generate", "--prompt", "x", "--samples", "0", "--seed", "-1"},
                 {"--samples 0", "--seed -1"});
  expect_refused({"score", "--model", "/nowhere", "--in", "/dev/null"}, {"/nowhere"});
  expect_refused({"export"}, {"--from: missing", "--out: missing"});
  expect_refused({"export", "--from", "/nowhere", "--out", path("x")},
                 {"/nowhere: no such folder"});
  expect_refused({"export", "--from", path("."), "--out", path("x")},
                 {"has neither manifest.json nor config.json"});
  expect_refused({"export", "--from", kTiny, "--out", "/nowhere/x"}, {"/nowhere: no such folder"});
  expect_refused({"score", "--in", "/tmp"}, {"--in /tmp: cannot be read"});
  expect_refused({"export", "--from", kTiny, "--out", kTiny}, {"exists already"});
  expect_refused({"score", "--out", kTiny}, {"exists already"});
  expect_refused({"score", "--out", "/nowhere/x.safetensors"}, {"/nowhere: no such folder"});
}
