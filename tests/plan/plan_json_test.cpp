// plan.json and the text: byte-stable, and the JSON is read back to the same plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "plan/plan_fixture.h"
#include "rlk/base/file.h"
#include "rlk/plan/plan.h"

namespace {

using namespace rlk;
using test::inputs;

Plan example() {
  return make_plan(
      inputs({{"temperature", "0.7"}, {"top-p", "0.95"}, {"rollout-cp", "2"}, {"threads", "1"}}));
}

// Text with this checkout's place taken out.
std::string portable(std::string text) {
  const std::string here = RLK_SOURCE_DIR;
  for (size_t at = 0; (at = text.find(here)) != std::string::npos;)
    text.replace(at, here.size(), "@SOURCE@");
  return text;
}

// RLK_UPDATE_GOLDEN=1 writes the files anew; the difference is then reviewed as part of the change.
void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(RLK_SOURCE_DIR "/tests/plan/golden/") + name;
  if (std::getenv("RLK_UPDATE_GOLDEN") != nullptr) write_file_atomic(path, text);
  std::istringstream got(text), expected(read_file(path));
  std::string a, b;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(got, a)),
               more_b = static_cast<bool>(std::getline(expected, b));
    if (!more_a && !more_b) return;
    ASSERT_TRUE(more_a && more_b && a == b)
        << path << ":" << line << "\n  is now:  " << a << "\n  was:     " << b
        << "\nRLK_UPDATE_GOLDEN=1 rewrites the file";
  }
}

}  // namespace

TEST(PlanText, IsTheGoldenFile) {
  expect_golden("plan.txt", portable(plan_to_text(example())));
}
TEST(PlanJson, IsTheGoldenFile) {
  expect_golden("plan.json", portable(plan_to_json(example())));
}

// Every bundled profile on a host without a GPU; a run of each fits the GPUs that it asks for.
TEST(PlanText, OfTheBundledProfilesIsTheGoldenFile) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(RLK_SOURCE_DIR "/profiles"))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_GT(files.size(), 5u);
  std::string text;
  for (const auto& file : files)
    for (const Command command : {Command::verify, Command::run}) {
      PlanInputs in;
      in.command = command;
      in.profile = read_profile(file);
      in.host.cores = 16;
      in.working_folder = "/here";
      in.default_run_id = "id";
      text += plan_to_text(make_plan(in)) + "\n";
    }
  expect_golden("profiles.txt", portable(text));
}

TEST(PlanJson, TheSameInputsGiveTheSameBytes) {
  EXPECT_EQ(plan_to_json(example()), plan_to_json(example()));
  EXPECT_EQ(plan_to_text(example()), plan_to_text(example()));
}

TEST(PlanJson, ReadsBackToTheSamePlan) {
  std::vector<PlanInputs> cases;
  cases.push_back(inputs());
  cases.push_back(
      inputs({{"group", "M010"}, {"seed", "18446744073709551615"}, {"trace-ops", "true"}}));
  cases.push_back(inputs({{"ref-load", "/ref"}, {"tp", "8"}, {"loss-aggregation", "token-mean"}},
                         Command::run));
  cases.push_back(inputs({{"temperature", "0.1"}, {"lr", "3e-05"}, {"kl-estimator", "k1"}}));
  cases.back().profile->task.prompt_data_sha256 = std::string(64, 'a');
  for (const PlanInputs& in : cases) {
    const Plan plan = make_plan(in);
    const Plan again = plan_from_json(plan_to_json(plan));
    EXPECT_EQ(plan_to_json(again), plan_to_json(plan));
    EXPECT_EQ(again.options.temperature, plan.options.temperature);  // the same bits
    EXPECT_EQ(again.options.seed, plan.options.seed);
    EXPECT_EQ(again.model.rms_eps, plan.model.rms_eps);
    EXPECT_EQ(again.memory, plan.memory);
  }
}

TEST(PlanJson, DamagedPlansAreRefused) {
  const Json good = Json::parse(plan_to_json(example()));
  const struct {
    const char* pointer;
    Json value;
  } cases[] = {{"/schema", "rlk.plan.v0"},
               {"/topology/tp", 3},
               {"/topology/cp", 8},
               {"/steps", 0},
               {"/sampling/temperature", "0.7"},
               {"/execution/kv_pages", -1},
               {"/model/config/eos", {1, "x"}},
               {"/memory/train.logits", 1.5},
               {"/seeds/seed", -1},
               {"/extra", 1},
               {"/modules/ffn", true}};
  for (const auto& c : cases) {
    Json bad = good;
    bad[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_THROW(plan_from_json(bad.dump()), InputError) << c.pointer;
  }
  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad.erase(key);
    if (key != "ranks") {
      EXPECT_THROW(plan_from_json(bad.dump()), InputError) << "without " << key;
    }
  }
}
