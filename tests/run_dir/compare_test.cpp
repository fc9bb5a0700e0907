// rlk compare: runs that differ in layout and timing alone are equal, and every compared field is
// compared.
#include "rlk/run/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "rlk/base/error.h"
#include "run_dir/synthetic_run.h"
#include "temp_dir.h"

using namespace rlk;
using rlk::test::passing_content;
using rlk::test::RunContent;
using rlk::test::TempDir;
using rlk::test::write_run;

namespace {

RunComparison compare(const RunContent& a, const RunContent& b) {
  TempDir dir;
  return compare_runs(write_run(dir.path() / "a", a), write_run(dir.path() / "b", b));
}

}  // namespace

TEST(Compare, LayoutAndTimingDoNotCount) {
  RunContent other = passing_content();
  other.plan.options.topology = {.ranks = 8, .tp = 8, .cp = 1, .rollout_tp = 1, .rollout_cp = 1};
  other.plan.options.threads = 3;
  for (auto& r : other.rollouts) r.engines.resize(8, r.engines[0]);
  for (auto& m : other.metrics) m.seconds = {9, 9, 9, 9, 9, 9, 54};
  for (auto& r : other.ranks) r.ops["gemm"].calls = 99;
  const RunComparison result = compare(passing_content(), other);
  EXPECT_FALSE(result.first.has_value()) << result.first->text();
  EXPECT_EQ(result.steps, 2);
  EXPECT_EQ(result.samples, 12);
  EXPECT_EQ(result.tokens, 2 * 2 * (5 + 6 + 7));
  EXPECT_EQ(result.fingerprints, 3 + 2 * 3 * 5);
}

struct Damage {
  const char* name;
  std::function<void(RunContent&)> damage;
  std::string expected;  // in the text of the difference
};

class CompareFinds : public testing::TestWithParam<Damage> {};

TEST_P(CompareFinds, TheFirstDifference) {
  RunContent other = passing_content();
  GetParam().damage(other);
  const RunComparison result = compare(passing_content(), other);
  ASSERT_TRUE(result.first.has_value()) << "found equal";
  EXPECT_NE(result.first->text().find(GetParam().expected), std::string::npos)
      << "expected: " << GetParam().expected << "\nfound:    " << result.first->text();
}

const Damage kDamages[] = {
    {"Token", [](RunContent& c) { c.steps[1].samples[4].tokens[3] += 1; },
     "step 1, prompt 3, sample 1, tokens at position 3: a 314, b 315"},
    {"SwappedTokens",
     [](RunContent& c) {
       std::swap(c.steps[0].samples[0].tokens[3], c.steps[0].samples[0].tokens[4]);
     },
     "step 0, prompt 0, sample 0, tokens at position 3: a 3, b 4"},
    {"RolloutLogp",
     [](RunContent& c) {
       float& x = c.steps[0].samples[2].rollout_logp[1];
       x = std::nextafter(x, 0.0f);
     },
     "prompt 0, sample 2, rollout_logp at position 4: a -1 (0xbf800000), b -0.99999994 "
     "(0xbf7fffff)"},
    {"TrainLogpZeroSign",
     [](RunContent& c) {
       c.steps[0].samples[0].train_logp[0] = -c.steps[0].samples[0].train_logp[0];
     },
     "train_logp at position 3: a -0.25 (0xbe800000), b 0.25 (0x3e800000)"},
    {"RefLogp", [](RunContent& c) { c.steps[0].samples[0].ref_logp[1] = -0.0f; },
     "ref_logp at position 4"},
    {"Reward", [](RunContent& c) { c.steps[0].samples[5].reward = 0.5; },
     "prompt 1, sample 2, reward: a 0 "},
    {"Advantage",
     [](RunContent& c) { c.steps[0].samples[1].advantage = std::nextafter(-0.707, 0.0); },
     "advantage: a -0.707"},
    {"Truncated", [](RunContent& c) { c.steps[0].samples[1].truncated = true; },
     "truncated: a false, b true"},
    {"DroppedSample", [](RunContent& c) { c.steps[1].samples.pop_back(); },
     "step 1, samples: a 6, b 5"},
    {"ShorterResponse",
     [](RunContent& c) {
       Sample& s = c.steps[0].samples[0];
       s.tokens.pop_back();
       s.rollout_logp.pop_back();
       s.train_logp.pop_back();
       s.ref_logp.pop_back();
     },
     "length of tokens: a 5, b 4"},
    {"WeightVersion", [](RunContent& c) { c.steps[1].weight_version = 0; },
     "step 1, weight_version: a 1, b 0"},
    {"GradNorm",
     [](RunContent& c) { c.metrics[1].updates[0].grad_norm = std::nextafter(1.5, 2.0); },
     "step 1, grad_norm: a 1.5 "},
    {"Loss", [](RunContent& c) { c.metrics[0].updates[0].loss = -0.5; }, "step 0, loss: a 0.5 "},
    {"SecondUpdate", [](RunContent& c) { c.metrics[0].updates.push_back(c.metrics[0].updates[0]); },
     "step 0, updates"},
    {"MissingStep", [](RunContent& c) { c.metrics.pop_back(); }, "step 1, steps: a 2, b 1"},
    {"InitialWeight",
     [](RunContent& c) { c.versions[0].tensors["model.norm.weight"].weight[5] ^= 1; },
     "step 0, weight of model.norm.weight, version 0"},
    {"Gradient",
     [](RunContent& c) { (*c.versions[2].tensors["model.norm.weight"].gradient)[0] ^= 1; },
     "step 1, gradient of model.norm.weight, version 2"},
    {"Master", [](RunContent& c) { (*c.versions[1].tensors["model.norm.weight"].master)[0] ^= 1; },
     "master of model.norm.weight, version 1"},
    {"Moment1",
     [](RunContent& c) { (*c.versions[1].tensors["model.norm.weight"].exp_avg)[0] ^= 1; },
     "exp_avg of"},
    {"Moment2",
     [](RunContent& c) { (*c.versions[1].tensors["model.norm.weight"].exp_avg_sq)[0] ^= 1; },
     "exp_avg_sq of"},
    {"MissingTensor", [](RunContent& c) { c.versions[1].tensors.erase("model.norm.weight"); },
     "tensor model.norm.weight, version 1: a present, b missing"},
    {"ExtraTensor", [](RunContent& c) { c.versions[0].tensors["lm_head.weight"] = {}; },
     "tensors, version 0: a 3, b 4"},
};

INSTANTIATE_TEST_SUITE_P(Damages, CompareFinds, testing::ValuesIn(kDamages),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Compare, UnreadableRunIsAnInputErrorThatNamesTheFile) {
  TempDir dir;
  const auto a = write_run(dir.path() / "a", passing_content()),
             b = write_run(dir.path() / "b", passing_content());
  std::filesystem::resize_file(b / "sidecars/step-000001.safetensors", 100);
  try {
    compare_runs(a, b);
    FAIL() << "a truncated sidecar was compared";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("step-000001.safetensors"), std::string::npos) << e.what();
  }
}
