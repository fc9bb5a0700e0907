// rlk.profile.v1: what is taken, and that every defect is named at its place, all of one file at
// once.
#include "rlk/profile/profile.h"

#include <gtest/gtest.h>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/profile/option_table.h"

namespace {

using namespace rlk;

Json valid_profile() {
  return Json::parse(R"({
    "schema_version": "rlk.profile.v1", "name": "test",
    "requirements": { "backend": "cuda", "ranks": 8, "gpu_models": ["H100"], "gpu_memory_gib": 80 },
    "model": { "source": "path" },
    "paths": { "workspace": "/data", "model_root": "model", "ref_load": null,
               "prompt_data": "../prompts.jsonl", "output_root": null },
    "task": { "reward": "deepscaler", "prompt_key": "q", "label_key": "a", "chat_template": false,
              "prompt_data_sha256": null },
    "defaults": { "tp": 4, "temperature": 0.7, "mode": "native", "trace-ops": true },
    "verify": { "max-response-len": 512 },
    "launcher": { "kind": "local", "ray_address": "http://127.0.0.1:8265" },
    "ranks_per_gpu": 1 })");
}

std::string defects(const Json& profile) {
  try {
    parse_profile(profile.dump(), "/etc/rlk/p.json");
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

TEST(Profile, ReadsEveryKeyAndResolvesPathsFromItsOwnFolder) {
  const Profile p = parse_profile(valid_profile().dump(), "/etc/rlk/p.json");
  EXPECT_EQ(p.name, "test");
  EXPECT_EQ(p.requirements.backend, "cuda");
  EXPECT_EQ(p.requirements.gpu_models, std::vector<std::string>{"H100"});
  EXPECT_EQ(p.requirements.gpu_memory_gib, 80);
  EXPECT_EQ(*p.paths.workspace, "/data");
  EXPECT_EQ(*p.paths.model_root, "/etc/rlk/model");
  EXPECT_EQ(*p.paths.prompt_data, "/etc/prompts.jsonl");
  EXPECT_FALSE(p.paths.ref_load || p.paths.output_root);
  EXPECT_EQ(p.task.prompt_key, "q");
  EXPECT_FALSE(p.task.chat_template);
  EXPECT_TRUE(p.task.thinking);
  ASSERT_EQ(p.defaults.size(), 4u);
  EXPECT_EQ(p.defaults[1].option, "temperature");
  EXPECT_EQ(p.defaults[1].text, "0.7");
  EXPECT_EQ(p.defaults[1].where, "/etc/rlk/p.json: defaults.temperature");
  EXPECT_EQ(p.defaults[3].text, "true");
  ASSERT_EQ(p.verify.size(), 1u);
}

TEST(Profile, EachDefectIsNamedAtItsPlace) {
  const struct {
    const char* pointer;
    Json value;
    const char* expected;
  } cases[] = {
      {"/schema_version", "rlk.profile.v2",
       "schema_version: \"rlk.profile.v2\"; must be rlk.profile.v1"},
      {"/name", 7, "name: 7; must be a string"},
      {"/nane", "x", "nane: unknown key; the nearest known key is name"},
      {"/requirements", 3, "requirements: 3; must be an object"},
      {"/requirements/ranks", 3, "requirements.ranks: 3; must be 1, 2, 4 or 8"},
      {"/requirements/ranks", 16, "requirements.ranks: 16; must be an integer from 1 to 8"},
      {"/requirements/ranks", 18446744073709551615ULL, "requirements.ranks"},
      {"/requirements/backend", "rocm",
       "requirements.backend: \"rocm\"; must be auto, cpu or cuda"},
      {"/requirements/gpu_models", "H100", "requirements.gpu_models"},
      {"/requirements/gpu_memory_gib", -1, "requirements.gpu_memory_gib"},
      {"/paths/model_root", "", "paths.model_root"},
      {"/paths/model_rot", "x",
       "paths.model_rot: unknown key; the nearest known key is model_root"},
      {"/task/reward", nullptr, "task.reward: null; must be a string"},
      {"/task/prompt_data_sha256", "XYZ", "task.prompt_data_sha256"},
      {"/task/thinking", 0, "task.thinking: 0; must be true or false"},
      {"/task/thinking", false, "task.thinking: false; the chat template closes"},
      {"/defaults/tp", {1}, "defaults.tp: an array; must be a number or a string"},
      {"/defaults/temprature", 1,
       "defaults.temprature: unknown key; the nearest known key is temperature"},
      {"/defaults/tp-size", 4, "defaults.tp-size: unknown key"},
      {"/defaults/model-root", "/m", "defaults.model-root: unknown key"},
      {"/verify/tp", true, "verify.tp: true; must be a number or a string"},
      {"/launcher/kind", "ray", "launcher.kind: \"ray\"; must be local"},
      {"/ranks_per_gpu", 0, "ranks_per_gpu"},
  };
  for (const auto& c : cases) {
    Json profile = valid_profile();
    profile[Json::json_pointer(c.pointer)] = c.value;
    const std::string text = defects(profile);
    EXPECT_NE(text.find(std::string("/etc/rlk/p.json: ") + c.expected), std::string::npos)
        << c.pointer << " = " << c.value.dump() << " gave: " << (text.empty() ? "no error" : text);
  }
}

TEST(Profile, ASyntheticModelHasAShapeAndNoFiles) {
  Json json = Json::parse(read_file(RLK_SOURCE_DIR "/profiles/synthetic-8b-x2.json"));
  const auto parse = [&] { return parse_profile(json.dump(), "/profiles/p.json"); };
  ASSERT_TRUE(parse().synthetic);
  EXPECT_EQ(parse().synthetic->shape, "qwen3-8b");
  EXPECT_EQ(parse().synthetic->prompt_tokens, 128);
  json["model"] = {{"source", "synthetic"}, {"shape", "x/config.json"}, {"seed", 7}};
  EXPECT_EQ(parse().synthetic->shape, "/profiles/x/config.json");
  EXPECT_EQ(parse().synthetic->seed, 7u);
  json["model"].erase("shape");
  EXPECT_THROW(parse(), InputError);
  json["model"] = {{"source", "path"}, {"seed", 7}};  // means nothing to a model of files
  EXPECT_THROW(parse(), InputError);
}

TEST(Profile, AllDefectsAreReportedAtOnce) {
  Json profile = valid_profile();
  profile["requirements"]["ranks"] = "8";
  profile["paths"]["typo"] = 1;
  profile.erase("task");
  const std::string text = defects(profile);
  for (const char* part : {"requirements.ranks", "paths.typo", "task: missing"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
}

TEST(Profile, ControlBytesOfAKeyDoNotReachTheTerminal) {
  Json profile = valid_profile();
  profile["\x1b[2J"] = 1;
  EXPECT_NE(defects(profile).find("\\x1b[2J: unknown key"), std::string::npos);
}

TEST(Profile, EveryProfileInTheTreeIsTaken) {
  int profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(RLK_SOURCE_DIR "/profiles")) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_NO_THROW(read_profile(entry.path())) << entry.path();
    ++profiles;
  }
  EXPECT_GT(profiles, 0);
  EXPECT_NO_THROW(read_profile(RLK_SOURCE_DIR "/rlk.example-profile.json"));
}

TEST(OptionTable, NamesAndAliasesAreUnique) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : option_table()) {
    names.push_back(spec.name);
    if (!spec.alias.empty()) names.push_back(spec.alias);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(OptionTable, PathsAlsoListenToTheKnownSystemsVariables) {
  EXPECT_EQ(environment_names(*find_option("tp-size")), std::vector<std::string>{"RLK_TP"});
  EXPECT_EQ(environment_names(*find_option("model-root")),
            (std::vector<std::string>{"RLK_MODEL_ROOT", "RLK_REPRO_MODEL_ROOT"}));
}

TEST(Profile, TakesPathsAndDefaultsOfTheKnownSystemAndListsTheRest) {
  const Profile p = parse_profile(R"({
    "schema_version": "rlkernel.repro.profile.v1", "name": "old",
    "paths": { "model_root": "m", "prompt_data": "/d/p.jsonl", "ref_load": null, "megatron_root": "/x" },
    "defaults": { "tp_size": 2, "rollout-temperature": 0.7, "ray_num_cpus": 8, "run_id": "r" },
    "requirements": { "backend": "cuda", "gpus": 4, "gpu_model": "H100", "torch": "2.9" },
    "ray": { "address": "x" } })",
                                  "/etc/rlk/p.json");
  EXPECT_EQ(p.requirements.ranks, 4);
  EXPECT_EQ(p.requirements.gpu_models, std::vector<std::string>{"H100"});
  EXPECT_EQ(p.name, "old");
  EXPECT_EQ(p.task.reward, "deepscaler");
  EXPECT_EQ(*p.paths.model_root, "/etc/rlk/m");
  EXPECT_EQ(*p.paths.prompt_data, "/d/p.jsonl");
  EXPECT_FALSE(p.paths.ref_load);
  ASSERT_EQ(p.defaults.size(), 2u);
  EXPECT_EQ(p.defaults[0].option, "tp");
  EXPECT_EQ(p.defaults[0].text, "2");
  EXPECT_EQ(p.defaults[1].option, "temperature");
  EXPECT_EQ(p.ignored, (std::vector<std::string>{"paths.megatron_root", "defaults.ray_num_cpus",
                                                 "defaults.run_id", "requirements.torch", "ray"}));
}

TEST(Profile, WhatIsWrongInTheKnownSystemsProfilesIsNamed) {
  EXPECT_EQ(defects(Json{{"schema_version", "rlkernel.repro.profile.v1"},
                         {"paths", {{"model_root", 5}}}}),
            "/etc/rlk/p.json: paths.model_root: 5; must be a path, or null");
  EXPECT_EQ(defects(Json{{"schema_version", "rlkernel.repro.profile.v1"},
                         {"requirements", {{"backend", "rocm"}, {"gpus", 3}}}}),
            "/etc/rlk/p.json: requirements.backend: \"rocm\"; must be cuda\n"
            "/etc/rlk/p.json: requirements.gpus: 3; must be 1, 2, 4 or 8");
  EXPECT_EQ(defects(Json{{"schema_version", "rlkernel.repro.profile.v1"},
                         {"defaults", {{"tp", 2}, {"tp_size", 4}}}}),
            "/etc/rlk/p.json: defaults.tp_size: names tp again; must stand once");
}

TEST(Profile, ARewardCommandsPathStartsAtTheProfilesFolder) {
  Json profile = valid_profile();
  profile["task"]["reward"] = "command:tools/judge";
  EXPECT_EQ(parse_profile(profile.dump(), "/etc/rlk/p.json").task.reward,
            "command:/etc/rlk/tools/judge");
  profile["task"]["reward"] = "command:/opt/judge";
  EXPECT_EQ(parse_profile(profile.dump(), "/etc/rlk/p.json").task.reward, "command:/opt/judge");
}
