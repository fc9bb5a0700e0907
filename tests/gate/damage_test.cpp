// Every gate fails, alone and by name, when its evidence is damaged.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gate/judged_run.h"
#include "rlk/base/error.h"

namespace rlk::test {

struct Damage {
  const char* name;
  std::function<void(RunContent&)> content;        // before the run is written, may be empty
  std::function<void(const fs::path&)> directory;  // afterwards, may be empty
  Failed gates;                                    // exactly these fail
  const char* detail;                              // part of the first of them's text
};

class DamagedRun : public testing::TestWithParam<Damage> {};

TEST_P(DamagedRun, FailsByName) {
  RunContent content = passing_content();
  if (GetParam().content) GetParam().content(content);
  const Validation v = validate(content, GetParam().directory);
  EXPECT_FALSE(v.passed());
  EXPECT_EQ(failed(v), GetParam().gates) << "failed: " << shown(failed(v)) << "\n" << to_text(v);
  EXPECT_NE(to_text(v).find(GetParam().detail), std::string::npos)
      << "expected: " << GetParam().detail << "\n"
      << to_text(v);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const Damage kLogprobDamage[] = {
    {"FlippedLogprobBit",
     [](RunContent& c) {
       float& x = c.steps[1].samples[2].train_logp[3];
       x = std::nextafter(x, 0.0f);
       summarise_again(c, 1);
     },
     {},
     {"logprobs"},
     "step 1, prompt 2, sample 2, position 6: rollout 0xbfc147ae (-1.50999999), training "
     "0xbfc147ad"},
    {"FlippedLogprobBitThatMetricsDoNotReport",
     [](RunContent& c) {
       float& x = c.steps[0].samples[0].rollout_logp[0];
       x = std::nextafter(x, 0.0f);
     },
     {},
     {"logprobs"},
     "step 0, prompt 0, sample 0, position 3"},
    {"SignedZero",
     [](RunContent& c) {
       c.steps[0].samples[0].rollout_logp[0] = 0.0f;
       c.steps[0].samples[0].train_logp[0] = -0.0f;
       summarise_again(c, 0);
     },
     {},
     {"logprobs"},
     "rollout 0x00000000 (0), training 0x80000000 (-0)"},
    {"EqualNans",
     [](RunContent& c) {
       c.steps[0].samples[0].rollout_logp[0] = c.steps[0].samples[0].train_logp[0] = kNan;
     },
     {},
     {"logprobs"},
     "rollout 0x7fc00000 (nan), training 0x7fc00000 (nan)"},
    {"EqualInfinities",
     [](RunContent& c) {
       c.steps[0].samples[0].rollout_logp[0] = c.steps[0].samples[0].train_logp[0] = -kInf;
     },
     {},
     {"logprobs"},
     "rollout 0xff800000 (-inf)"},
    {"MetricsClaimAMismatch",
     [](RunContent& c) { c.metrics[1].mismatch_count = 1; },
     {},
     {"logprobs"},
     "step 1: metrics do not report the mismatch that the sidecar holds"},
};

const Damage kSampleDamage[] = {
    {"MissingSample",
     [](RunContent& c) {
       c.steps[0].samples.pop_back();
       c.texts[0].pop_back();
       summarise_again(c, 0);
     },
     {},
     {"samples"},
     "step 0: 5 samples, planned were 6"},
    {"DroppedSampleInTheMiddle",
     [](RunContent& c) {
       c.steps[0].samples.erase(c.steps[0].samples.begin() + 1);
       c.texts[0].erase(c.texts[0].begin() + 1);
       summarise_again(c, 0);
     },
     {},
     {"samples"},
     "prompt 0, sample 2 stands where sample 1 of a prompt belongs"},
    {"RepeatedSample",
     [](RunContent& c) {
       c.steps[0].samples[1] = c.steps[0].samples[0];
       c.texts[0][1] = c.texts[0][0];
       summarise_again(c, 0);
     },
     {},
     {"samples"},
     "prompt 0, sample 0 stands where sample 1"},
    {"PromptTwice",
     [](RunContent& c) {
       for (size_t i = 3; i < 6; ++i) c.steps[0].samples[i].prompt = c.texts[0][i].prompt = 0;
     },
     {},
     {"samples"},
     "prompt 0, sample 0 is out of order"},
    {"EmptyResponse",
     [](RunContent& c) {
       Sample& s = c.steps[0].samples[0];
       s.tokens.resize(3);
       s.rollout_logp.clear();
       s.train_logp.clear();
       s.ref_logp.clear();
       summarise_again(c, 0);
     },
     {},
     {"samples"},
     "prompt 0, sample 0 has no response token"},
    {"ResponseBeyondTheLimit",
     [](RunContent& c) { c.plan.options.max_response_len = 3; },
     {},
     {"samples"},
     "has 4 response tokens, the limit is 3"},
    {"MissingReference",
     [](RunContent& c) {
       for (Sample& s : c.steps[1].samples) s.ref_logp.clear();
     },
     {},
     {"samples"},
     "has no reference log-probs"},
    {"NanReference",
     [](RunContent& c) { c.steps[1].samples[0].ref_logp[1] = kNan; },
     {},
     {"samples"},
     "reference log-prob that is not finite"},
    {"NanReward",
     [](RunContent& c) { c.steps[1].samples[0].reward = kNan; },
     {},
     {"samples"},
     "reward or advantage that is not finite"},
    {"StaleSamplingVersion",
     [](RunContent& c) { c.steps[1].weight_version = 0; },
     {},
     {"samples"},
     "step 1: sampled with weight version 0"},
    {"TextOfAnotherSample",
     [](RunContent& c) { c.texts[1][2].sample = 1; },
     {},
     {"samples"},
     "line 3 is of another sample"},
    {"TextWithAnotherReward",
     [](RunContent& c) { c.texts[1][2].reward = 1; },
     {},
     {"samples"},
     "line 3 has another reward"},
    {"MissingText",
     [](RunContent& c) { c.texts[1].pop_back(); },
     {},
     {"samples"},
     "5 texts for 6 samples"},
    {"MetricsCountOtherTokens",
     [](RunContent& c) { c.metrics[0].response_tokens += 1; },
     {},
     {"samples"},
     "step 0: response_tokens is 19, by the sidecar 18"},
    {"MetricsReportAnotherReward",
     [](RunContent& c) { c.metrics[1].reward_mean += 0.5; },
     {},
     {"samples"},
     "step 1: reward_mean is "},
    {"TextTruncatedOtherwise",
     [](RunContent& c) { c.texts[0][4].truncated = true; },
     {},
     {"samples"},
     "line 5 is truncated in one of text and sidecar"},
};

const Damage kStepDamage[] = {
    {"MissingMetricsStep",
     [](RunContent& c) { c.metrics.pop_back(); },
     {},
     {"steps", "logprobs", "samples", "gradient", "learning_rate"},
     "1 of 2 steps in metrics.jsonl"},
    {"StepsOutOfOrder",
     [](RunContent& c) { std::swap(c.metrics[0], c.metrics[1]); },
     {},
     {"steps"},
     "line 1 is step 1"},
    {"StepTwice",
     [](RunContent& c) { c.metrics.push_back(c.metrics[1]); },
     {},
     {"steps"},
     "line 3 is step 1"},
    {"StaleVersionInMetrics",
     [](RunContent& c) { c.metrics[1].weight_version = 0; },
     {},
     {"steps"},
     "step 1 with weight version 0"},
    {"MissingSidecar",
     [](RunContent& c) { c.steps.pop_back(); },
     {},
     {"steps", "logprobs", "samples", "gradient", "learning_rate", "weights_changed"},
     "sidecars/step-000001.safetensors is missing"},
    {"MissingTexts",
     [](RunContent& c) { c.texts.pop_back(); },
     {},
     {"steps", "samples"},
     "trajectories/step-000001.jsonl is missing"},
    {"MissingVersion",
     [](RunContent& c) { c.versions.pop_back(); },
     {},
     {"steps", "rollout_weights", "gradient", "weights_changed"},
     "weights/version-000002.json is missing"},
    {"MissingRolloutWeights",
     [](RunContent& c) { c.rollouts.pop_back(); },
     {},
     {"steps", "rollout_weights"},
     "weights/rollout-000001.json is missing"},
    {"StepBeyondThePlan",
     [](RunContent& c) {
       c.steps.push_back(c.steps[1]);
       c.steps[2].step = 2;
     },
     {},
     {"steps"},
     "sidecars/step-000002.safetensors belongs to no planned step"},
    {"NanMetric",
     [](RunContent& c) { c.metrics[1].updates[0].loss = kNan; },
     {},
     {"metrics"},
     "line 2: loss is null"},
    {"InfiniteMetric",
     [](RunContent& c) { c.metrics[1].reward_mean = kInf; },
     {},
     {"metrics", "samples"},
     "line 2: reward_mean is null"},
    {"NanStageTime",
     [](RunContent& c) { c.metrics[0].seconds.score = kNan; },
     {},
     {"metrics"},
     "line 1: seconds.score is null"},
    {"NanClipFraction",
     [](RunContent& c) { c.metrics[0].updates[0].clip_fraction = kNan; },
     {},
     {"metrics"},
     "line 1: updates.0.clip_fraction is null"},
    {"LossThatIsNotTheUpdatesMean",
     {},
     [](const fs::path& run) {
       std::string text = read_file(run / "metrics.jsonl");
       text.replace(text.find("\"loss\":") + 7, 0, "1");
       write_file_atomic(run / "metrics.jsonl", text);
     },
     {"metrics", "manifest"},
     "line 1: loss is not the mean over the updates"},
};

const Damage kRankDamage[] = {
    {"KilledRank",
     [](RunContent& c) {
       c.ranks.erase(c.ranks.begin() + 5);
       c.exits[5] = {5, 0, 9};
     },
     {},
     {"ranks", "kernels"},
     "rank 5 was killed by signal 9"},
    {"FailedRank",
     [](RunContent& c) { c.exits[2].code = 1; },
     {},
     {"ranks"},
     "rank 2 exited with 1"},
    {"RankWithoutExit",
     [](RunContent& c) { c.exits.pop_back(); },
     {},
     {"ranks"},
     "rank 7 has no recorded exit"},
    {"RankThatStoppedEarly",
     [](RunContent& c) { c.ranks[4].steps = 1; },
     {},
     {"ranks"},
     "rank 4 finished 1 of 2 steps"},
    {"RecordOfNoRank",
     [](RunContent& c) {
       c.ranks.push_back({8, 1008, 2, c.ranks[0].ops, std::nullopt});
     },
     {},
     {"ranks"},
     "evidence/rank-8.json belongs to no rank"},
    {"UnfinishedStatus",
     [](RunContent& c) { c.status = RunStatus::interrupted; },
     {},
     {"ranks"},
     "the run is interrupted"},
    {"RecordedFailure",
     {},
     [](const fs::path& run) { RunWriter(run).write_failure(1, "rollout", "boom"); },
     {"ranks"},
     "rank 1 failed in rollout: boom"},
    {"Fallback",
     [](RunContent& c) { c.ranks[6].ops["ffn.swiglu"].fallbacks = 2; },
     {},
     {"kernels"},
     "ffn.swiglu on rank 6 fell back 2 times"},
    {"NativeKernelInStrictMode",
     [](RunContent& c) {
       c.ranks[1].ops["attention.attention"] = {"cudnn", false, 12, 0};
     },
     {},
     {"kernels"},
     "attention.attention on rank 1 ran cudnn, which is not strict"},
    {"OpNeverCalled",
     [](RunContent& c) {
       for (auto& r : c.ranks) r.ops["ffn.adamw"].calls = 0;
     },
     {},
     {"kernels"},
     "ffn.adamw never ran on any rank"},
    {"OpNotCalledOnOneRank",
     [](RunContent& c) { c.ranks[3].ops["attention.attention"].calls = 0; },
     {},
     {"kernels"},
     "attention.attention on rank 3 never ran"},
    {"OpNotReported",
     [](RunContent& c) { c.ranks[3].ops.erase("attention.gemm"); },
     {},
     {"kernels"},
     "attention.gemm on rank 3 never ran"},
    {"OtherImplementationOnOneRank",
     [](RunContent& c) { c.ranks[3].ops["logp.gemm"].implementation = "cpu.old"; },
     {},
     {"kernels"},
     "logp.gemm on rank 3 ran cpu.old, rank 0 cpu"},
};

const Damage kWeightDamage[] = {
    {"StaleRolloutTensor",
     [](RunContent& c) {
       c.rollouts[1].engines[1]["model.norm.weight"] =
           c.versions[0].tensors["model.norm.weight"].weight;
     },
     {},
     {"rollout_weights"},
     "step 1: engine 1: model.norm.weight is "},
    {"StaleRolloutVersion",
     [](RunContent& c) {
       c.rollouts[1].engines = c.rollouts[0].engines;
       c.rollouts[1].version = 0;
     },
     {},
     {"rollout_weights"},
     "step 1: engines claim version 0"},
    {"RolloutTensorMissing",
     [](RunContent& c) { c.rollouts[0].engines[0].erase("model.norm.weight"); },
     {},
     {"rollout_weights"},
     "model.norm.weight is missing"},
    {"RolloutTensorUnknown",
     [](RunContent& c) { c.rollouts[0].engines[0]["x"] = {}; },
     {},
     {"rollout_weights"},
     "x belongs to no version"},
    {"SilentEngine",
     [](RunContent& c) { c.rollouts[0].engines.pop_back(); },
     {},
     {"rollout_weights"},
     "1 of 2 engines reported"},
    {"TensorMissingInTheLastVersion",
     [](RunContent& c) { c.versions[2].tensors.erase("model.norm.weight"); },
     {},
     {"rollout_weights"},
     "step 1: versions before and after differ in having model.norm.weight"},
    {"UnchangedWeightVersion",
     [](RunContent& c) {
       for (auto& [name, t] : c.versions[2].tensors) t.weight = c.versions[1].tensors[name].weight;
     },
     {},
     {"weights_changed"},
     "step 1: version 2 has the weights of version 1"},
    {"ZeroGradient",
     [](RunContent& c) { c.metrics[1].updates[0].grad_norm = 0; },
     {},
     {"gradient"},
     "step 1: gradient norm is 0.0"},
    {"MissingGradientFingerprint",
     [](RunContent& c) { c.versions[1].tensors["model.norm.weight"].gradient.reset(); },
     {},
     {"gradient", "rollout_weights", "weights_changed"},
     "\"gradient\" is missing"},
    {"ZeroLearningRate",
     [](RunContent& c) { c.metrics[0].updates[0].lr = 0; },
     {},
     {"learning_rate"},
     "step 0: learning rate is 0.0"},
    {"NegativeLearningRate",
     [](RunContent& c) { c.metrics[0].updates[0].lr = -1e-6; },
     {},
     {"learning_rate"},
     "step 0: learning rate is -1e-06"},
    {"NoSignal",
     remove_signal,
     {},
     {"gradient", "learning_rate", "weights_changed"},
     "no step has a signal"},
};

const Damage kFileDamage[] = {
    {"EditedManifest",
     {},
     [](const fs::path& run) {
       edit_json(run / "manifest.json", [](Json& m) { m["algorithm"]["lr"] = 1.0; });
     },
     {"manifest"},
     "the manifest was edited"},
    {"ManifestWithoutAKey",
     {},
     manifest_edit([](Json& m) { m.erase("environment"); }),
     {"manifest"},
     "key environment is missing"},
    {"ManifestWithoutANestedKey",
     {},
     manifest_edit([](Json& m) { m["source"].erase("dirty"); }),
     {"manifest"},
     "key source.dirty is missing"},
    {"ManifestOfAnotherPlan",
     {},
     manifest_edit([](Json& m) { m["sampling"]["temperature"] = 0.5; }),
     {"manifest"},
     "sampling is not what plan.json says"},
    {"ManifestWithoutModelHashes",
     {},
     manifest_edit([](Json& m) { m["model"]["files"] = Json::object(); }),
     {"manifest"},
     "model.files is empty"},
    {"ManifestOfASyntheticModelWithFiles",
     {},
     manifest_edit([](Json& m) {
       m["model"]["synthetic"] = {{"shape", "qwen3-8b"}};
     }),
     {"manifest"},
     "model.files of a synthetic model is not empty"},
    {"ManifestOfASyntheticModelWithPrompts",
     {},
     manifest_edit([](Json& m) {
       m["model"]["synthetic"] = {{"shape", "qwen3-8b"}};
       m["model"]["files"] = Json::object();
     }),
     {"manifest"},
     "data.sha256 of synthetic prompts"},
    {"ManifestWithABadModelHash",
     {},
     manifest_edit([](Json& m) { m["model"]["files"]["model.safetensors"] = "abc"; }),
     {"manifest"},
     "model.files.model.safetensors is no SHA-256"},
    {"ManifestWithABadDataHash",
     {},
     manifest_edit([](Json& m) { m["data"]["sha256"] = ""; }),
     {"manifest"},
     "data.sha256 is no SHA-256"},
    {"ManifestWithoutARanksCommand",
     {},
     manifest_edit([](Json& m) { m["commands"].erase(0); }),
     {"manifest"},
     "commands do not list every rank"},
    {"ManifestOfAnUnknownMode",
     {},
     manifest_edit([](Json& m) { m["mode"] = "fast"; }),
     {"manifest"},
     "\"mode\" is \"fast\""},
    {"ManifestThatIsNoJson",
     {},
     [](const fs::path& run) { write_file_atomic(run / "manifest.json", "{"); },
     {"manifest"},
     "manifest.json:1:2"},
    {"EditedPlan",
     {},
     [](const fs::path& run) { append_file(run / "plan.json", " "); },
     {"manifest"},
     "plan.json is not what the manifest recorded"},
    {"EditedTrajectory",
     {},
     [](const fs::path& run) {
       std::string text = read_file(run / "trajectories/step-000000.jsonl");
       text.replace(text.find("boxed{2}"), 8, "boxed{3}");
       write_file_atomic(run / "trajectories/step-000000.jsonl", text);
     },
     {"manifest"},
     "trajectories/step-000000.jsonl is not what the manifest recorded"},
    {"TruncatedSidecar",
     {},
     [](const fs::path& run) {
       const fs::path path = run / "sidecars/step-000001.safetensors";
       fs::resize_file(path, fs::file_size(path) - 4);
     },
     {"manifest", "logprobs", "samples", "gradient", "learning_rate", "weights_changed"},
     "end beyond the data"},
    {"EmptySidecar",
     {},
     [](const fs::path& run) { fs::resize_file(run / "sidecars/step-000000.safetensors", 0); },
     {"manifest", "logprobs", "samples", "gradient", "learning_rate", "weights_changed"},
     "step-000000.safetensors"},
    {"TruncatedMetrics",
     {},
     [](const fs::path& run) {
       fs::resize_file(run / "metrics.jsonl", fs::file_size(run / "metrics.jsonl") - 10);
     },
     {"manifest", "steps", "metrics", "logprobs", "samples", "gradient", "learning_rate"},
     "ends inside a line"},
    {"RemovedEvidence",
     {},
     [](const fs::path& run) { fs::remove(run / "evidence/rank-0.json"); },
     {"manifest", "ranks", "kernels"},
     "evidence/rank-0.json"},
    {"AddedEvidence",
     {},
     [](const fs::path& run) { append_file(run / "weights/extra.json", "{}"); },
     {"manifest", "steps"},
     "weights/extra.json is not in the manifest"},
    {"SymlinkInTheDirectory",
     {},
     [](const fs::path& run) {
       fs::create_symlink("/etc/passwd", run / "weights/version-000003.json");
     },
     {"manifest", "ranks", "steps"},
     "is neither a file nor a folder"},
};

const auto kByName = [](const auto& test) { return std::string(test.param.name); };
INSTANTIATE_TEST_SUITE_P(Logprobs, DamagedRun, testing::ValuesIn(kLogprobDamage), kByName);
INSTANTIATE_TEST_SUITE_P(Samples, DamagedRun, testing::ValuesIn(kSampleDamage), kByName);
INSTANTIATE_TEST_SUITE_P(Steps, DamagedRun, testing::ValuesIn(kStepDamage), kByName);
INSTANTIATE_TEST_SUITE_P(Ranks, DamagedRun, testing::ValuesIn(kRankDamage), kByName);
INSTANTIATE_TEST_SUITE_P(Weights, DamagedRun, testing::ValuesIn(kWeightDamage), kByName);
INSTANTIATE_TEST_SUITE_P(Files, DamagedRun, testing::ValuesIn(kFileDamage), kByName);

}  // namespace rlk::test
