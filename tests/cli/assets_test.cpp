// doctor, prepare and tokenize through the real binary: what a user types before a run.
#include <gtest/gtest.h>

#include <fstream>

#include "cli/run_rlk.h"
#include "rlk/base/json.h"

namespace {

using namespace rlk;
using test::Finished;
using test::run_rlk;
using test::TempDir;
namespace fs = std::filesystem;

const std::string kTiny = RLK_SOURCE_DIR "/profiles/tiny";

class Assets : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  void expect_refused(const std::vector<std::string>& args, const std::vector<std::string>& parts) {
    const Finished f = run_rlk({args});
    EXPECT_EQ(f.code, 2) << f.err;
    for (const std::string& part : parts)
      EXPECT_NE(f.err.find(part), std::string::npos) << part << " not in:\n" << f.err;
  }
  // The bundled profile with other paths.
  std::string profile(const std::string& model, const std::string& prompts) const {
    Json json = Json::parse(read_file(kTiny + ".json"));
    json["paths"] = {
        {"model_root", model}, {"prompt_data", prompts}, {"output_root", path("runs")}};
    return write("p.json", json.dump());
  }
  static std::map<std::string, Json> checks(const Finished& f) {
    std::map<std::string, Json> found;
    for (const Json& check : Json::parse(f.out)) found[check["check"]] = check;
    return found;
  }
  TempDir dir_;
};

}  // namespace

TEST_F(Assets, DoctorPassesOnTheBundledProfile) {
  const Finished text = run_rlk({{"doctor"}}), json = run_rlk({{"doctor", "--json"}});
  EXPECT_EQ(text.code, 0) << text.out << text.err;
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(text.out.find("FAIL"), std::string::npos) << text.out;
  for (const char* name : {"cpu", "shared memory", "profile", "gpu", "plan", "output", "files"}) {
    EXPECT_NE(text.out.find(std::string("PASS  ") + name), std::string::npos) << name;
    EXPECT_EQ(checks(json).at(name)["pass"], true) << name;
  }
  EXPECT_FALSE(fs::exists(path("runs")));
}

TEST_F(Assets, DoctorSaysWhatIsWrongAndWhatToType) {
  fs::copy(kTiny, path("model"));
  fs::remove(path("model/tokenizer.json"));
  fs::resize_file(path("model/model.safetensors"),
                  fs::file_size(path("model/model.safetensors")) - 10);
  const std::string p = profile("model", kTiny + "/prompts.jsonl");
  const Finished text = run_rlk({{"doctor", "--profile", p}});
  EXPECT_EQ(text.code, 2);
  for (const char* part :
       {"FAIL  files", "tokenizer.json", "model.safetensors", "next: put a Qwen3 folder"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " not in:\n" << text.out;
  const auto json = checks(run_rlk({{"doctor", "--json", "--profile", p}}));
  EXPECT_EQ(json.at("files")["pass"], false);
  EXPECT_NE(json.at("files")["next"], "");
  EXPECT_EQ(json.at("profile")["pass"], true);
  const std::string q = profile(kTiny, write("prompts.jsonl", "{\"prompt\": 1}\n"));
  const auto bad = checks(run_rlk({{"doctor", "--json", "--profile", q}})).at("files");
  EXPECT_NE(bad["found"].get<std::string>().find("prompts.jsonl:1: "), std::string::npos) << bad;
  EXPECT_EQ(bad["next"].get<std::string>().find("rlk prepare --download-data"), 0u) << bad;
  const std::string none = profile("/nowhere/model", "/nowhere/prompts.jsonl");
  const auto missing = checks(run_rlk({{"doctor", "--json", "--profile", none}}));
  EXPECT_EQ(missing.at("plan")["found"], "/nowhere/model/config.json: No such file or directory");
  EXPECT_EQ(missing.at("files")["found"], "/nowhere/prompts.jsonl: is not there");
  const std::string lone = write("lone.json", Json{{"schema_version", "rlkernel.repro.profile.v1"},
                                                   {"paths", {{"ref_load", "/nowhere/ref"}}}}
                                                  .dump());
  const auto reference = checks(run_rlk({{"doctor", "--json", "--profile", lone}})).at("files");
  EXPECT_EQ(reference["found"], "/nowhere/ref: is not there");
  EXPECT_EQ(reference["next"].get<std::string>().find("put a Qwen3 folder"), 0u) << reference;
  // A plan of GPUs and of a model that are not there.
  const Finished absent =
      run_rlk({{"doctor", "--json", "--profile", RLK_SOURCE_DIR "/profiles/qwen3-8b.json"}});
  EXPECT_EQ(absent.code, 2) << absent.err;
  EXPECT_EQ(checks(absent).at("plan")["pass"], true);
  EXPECT_EQ(checks(absent).at("files")["pass"], false);
  const auto junk = checks(run_rlk({{"doctor", "--json", "--profile", write("junk", "{")}}));
  EXPECT_EQ(junk.at("profile")["pass"], false);
}

TEST_F(Assets, DoctorListsWhatItIgnoresOfTheKnownSystemsProfiles) {
  const std::string p = write("old.json", Json{{"schema_version", "rlkernel.repro.profile.v1"},
                                               {"paths",
                                                {{"model_root", kTiny},
                                                 {"prompt_data", kTiny + "/prompts.jsonl"},
                                                 {"workspace", path("w")},
                                                 {"megatron_root", "/m"}}},
                                               {"defaults", {{"tp", 4}, {"ray_num_cpus", 8}}},
                                               {"modes", Json::object()}}
                                              .dump());
  const auto json = checks(run_rlk({{"doctor", "--json", "--profile", p}}));
  EXPECT_EQ(json.at("profile keys")["found"],
            "ignored, they speak to another framework: paths.megatron_root, "
            "defaults.ray_num_cpus, modes");
  const std::string bare = write("bare.json", Json{{"schema_version", "rlkernel.repro.profile.v1"},
                                                   {"paths", {{"model_root", kTiny}}}}
                                                  .dump());
  const std::string text = run_rlk({{"doctor", "--profile", bare}}).out;
  EXPECT_NE(text.find("--prompt-data: missing"), std::string::npos) << text;
  EXPECT_NE(text.find("next: rlk prepare --download-data --out FILE"), std::string::npos) << text;
}

TEST_F(Assets, PrepareConvertsALocalFile) {
  const std::string in = write("in.jsonl",
                               "{\"prompt\": \"1+1\", \"answer\": 2}\n"
                               "{\"prompt\": \"1+1\", \"answer\": 2}\n");
  const Finished f = run_rlk({{"prepare", "--convert", in, "--out", path("out.jsonl")}});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("out.jsonl: 1 prompts"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("task.prompt_data_sha256"), std::string::npos) << f.out;
  EXPECT_EQ(read_file(path("out.jsonl")), "{\"prompt\":\"1+1\",\"label\":2}\n");
  const Finished url = run_rlk(
      {{"prepare", "--download-data", "--url", "file://" + in, "--out", path("again.jsonl")}});
  ASSERT_EQ(url.code, 0) << url.err;
  EXPECT_EQ(read_file(path("again.jsonl")), read_file(path("out.jsonl")));
}

TEST_F(Assets, PrepareOverwritesNothing) {
  const std::string in = write("mine.jsonl", "{\"prompt\": \"1+1\", \"answer\": 2}\n");
  const std::string before = read_file(in);
  expect_refused({"prepare", "--convert", in, "--out", in}, {"mine.jsonl: exists already"});
  expect_refused({"prepare", "--download-data", "--url", "file://" + in, "--out", in},
                 {"mine.jsonl: exists already"});
  EXPECT_EQ(read_file(in), before);
}

TEST_F(Assets, PrepareRefusesByName) {
  const std::string shape = RLK_SOURCE_DIR "/profiles/tiny/config.json";
  expect_refused(
      {"prepare", "--synthetic", shape, "--tokenizer-dir", "/nowhere", "--out", path("m")},
      {"/nowhere: has no tokenizer.json"});
  expect_refused({"prepare"}, {"give one of --download-data", "--out: missing"});
  expect_refused({"prepare", "--synthetic", "qwen3-9b", "--seed", "x", "--out", path("m")},
                 {"--seed: x; must be an integer"});
  expect_refused({"prepare", "--synthetic", "qwen3-9b", "--out", path("m")},
                 {"qwen3-9b\"; must be one of qwen3-0.6b"});
  expect_refused({"prepare", "--convert", "/nowhere", "--out", path("o")}, {"/nowhere"});
  expect_refused({"prepare", "--convert", "x", "--sha256", "00", "--seed", "1", "--out", path("o")},
                 {"--sha256: means nothing without --download-data", "--sha256: 00; must be 64",
                  "--seed: means nothing without --synthetic"});
  expect_refused(
      {"prepare", "--convert", write("bad", "{\"prompt\": \"x\"}\n"), "--out", path("o")},
      {"bad:1: has no label"});
  const Finished f =
      run_rlk({{"prepare", "--download-data", "--url", "file:///nowhere/x", "--out", path("o")}});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("file:///nowhere/x"), std::string::npos) << f.err;
  EXPECT_FALSE(fs::exists(path("o")));
}

TEST_F(Assets, TokenizeRefusesByName) {
  expect_refused({"tokenize"}, {"--tokenizer: missing"});
  expect_refused({"tokenize", "--tokenizer", "/nowhere"}, {"/nowhere"});
  expect_refused(
      {"tokenize", "--tokenizer", write("t.json", "{\"model\": {\"type\": \"WordPiece\"}}")},
      {"t.json"});
}
