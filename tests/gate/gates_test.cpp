// Every gate passes on a sound run directory and fails, alone and by name, when its evidence is
// damaged.
#include "rlk/gate/gates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/run/manifest_digest.h"
#include "run_dir/synthetic_run.h"
#include "temp_dir.h"

namespace fs = std::filesystem;
using namespace rlk;
using rlk::test::passing_content;
using rlk::test::RunContent;
using rlk::test::TempDir;
using rlk::test::write_run;

namespace {

using Failed = std::set<std::string>;

Validation validate(const RunContent& content,
                    const std::function<void(const fs::path&)>& damage = {}) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), content);
  if (damage) damage(run);
  return validate_run(run);
}

Failed failed(const Validation& v) {
  Failed names;
  for (const GateResult& g : v.gates)
    if (g.verdict == Verdict::fail) names.insert(g.name);
  return names;
}

const GateResult& gate(const Validation& v, const std::string& name) {
  return *std::find_if(v.gates.begin(), v.gates.end(),
                       [&](const GateResult& g) { return g.name == name; });
}

std::string shown(const Failed& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

// The metrics of step `step` follow from its samples again, so that a defect is in one place alone.
void summarise_again(RunContent& c, size_t step) {
  const StepMetrics old = c.metrics[step];
  c.metrics[step] = summarise(c.steps[step]);
  c.metrics[step].updates = old.updates;
  c.metrics[step].seconds = old.seconds;
}

void edit_json(const fs::path& path, const std::function<void(Json&)>& edit) {
  Json json = Json::parse(read_file(path));
  edit(json);
  write_file_atomic(path, json.dump(2) + "\n");
}

// An edit of the manifest that keeps its digest right: what a careful forger would do.
std::function<void(const fs::path&)> manifest_edit(const std::function<void(Json&)>& edit) {
  return [edit](const fs::path& run) {
    edit_json(run / "manifest.json", [&](Json& m) {
      edit(m);
      m["digest"] = manifest_digest(m);
    });
  };
}

void remove_signal(RunContent& c) {
  for (Trajectory& t : c.steps)
    for (Sample& s : t.samples) {
      s.advantage = 0;
      s.ref_logp = s.train_logp;
    }
  for (auto& texts : c.texts)
    for (SampleText& text : texts) text.advantage = 0;
  for (size_t i = 0; i < c.steps.size(); ++i) summarise_again(c, i);
}

}  // namespace

TEST(Gates, SoundVerifyRunPassesEveryGate) {
  const Validation v = validate(passing_content());
  EXPECT_TRUE(v.passed()) << to_text(v);
  EXPECT_EQ(v.gates.size(), 12u);
  EXPECT_EQ(v.run_id, "synthetic");
  for (const GateResult& g : v.gates) {
    EXPECT_EQ(g.verdict, g.name == "graphs" ? Verdict::not_applicable : Verdict::pass)
        << g.name << ": " << g.detail;
    EXPECT_FALSE(g.detail.empty()) << g.name;
    EXPECT_FALSE(g.evidence.empty()) << g.name;
  }
  EXPECT_EQ(gate(v, "logprobs").figures["compared"], 36);
  EXPECT_EQ(gate(v, "logprobs").figures["differ"], 0);
  EXPECT_EQ(gate(v, "weights_changed").figures["fewest_changed"], 3);
  EXPECT_EQ(to_json(v)["gates"].size(), 12u);
  EXPECT_EQ(to_json(v)["passed"], true);
}

TEST(Gates, UpdateGatesBelongToVerifyAlone) {
  RunContent c = passing_content();
  c.plan.options.command = Command::run;
  const Validation v = validate(c);
  EXPECT_TRUE(v.passed()) << to_text(v);
  EXPECT_EQ(v.gates.size(), 9u);
}

// ---- Damage -----------------------------------------------------------------------------------

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

// ---- Signal -----------------------------------------------------------------------------------

TEST(UpdateGates, GreedyWithoutSignalIsNotApplicable) {
  RunContent c = passing_content();
  c.plan.options.temperature = 0;
  remove_signal(c);
  for (auto& m : c.metrics) m.updates[0].grad_norm = 0;
  const Validation v = validate(c);
  EXPECT_TRUE(v.passed()) << to_text(v);
  for (const char* name : {"gradient", "learning_rate", "weights_changed"})
    EXPECT_EQ(gate(v, name).verdict, Verdict::not_applicable) << name;
}

TEST(UpdateGates, GreedyWithSignalIsJudged) {
  RunContent c = passing_content();
  c.plan.options.temperature = 0;
  c.metrics[0].updates[0].grad_norm = 0;
  EXPECT_EQ(failed(validate(c)), Failed{"gradient"});
}

TEST(UpdateGates, KlDerivativeIsASignalOfItsOwn) {
  RunContent c = passing_content();
  remove_signal(c);
  c.steps[1].samples[0].ref_logp[0] -= 0.5f;
  c.metrics[0].updates[0].grad_norm = 0;  // step 0 has no signal, so this is no defect
  EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
  c.plan.options.kl_coef = 0;
  EXPECT_EQ(failed(validate(c)), (Failed{"gradient", "learning_rate", "weights_changed"}));
}

TEST(UpdateGates, FirstKlEstimatorHasAConstantDerivative) {
  RunContent c = passing_content();
  remove_signal(c);
  c.plan.options.kl_estimator = 1;
  EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
}

TEST(UpdateGates, TheOnlyTokenOfASupportIsNoSignal) {
  RunContent c = passing_content();
  for (Sample& s : c.steps[1].samples)
    for (size_t i = 0; i < s.train_logp.size(); ++i) s.rollout_logp[i] = s.train_logp[i] = 0;
  summarise_again(c, 1);
  c.metrics[1].updates[0].grad_norm = 0;  // advantages and KL are there, and move nothing
  EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
  c.steps[1].samples[4].rollout_logp[0] = c.steps[1].samples[4].train_logp[0] = -0.5f;
  EXPECT_EQ(failed(validate(c)), Failed{"gradient"});
}

TEST(Gates, ARankWithoutResponseTokensRunsNoHead) {
  RunContent c = passing_content();
  for (const char* op : {"logp.rms_norm", "logp.gemm", "logp.logprob_stats", "logp.logprob_merge"})
    c.ranks[7].ops.erase(op);
  EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
}

TEST(UpdateGates, StepWithoutSignalMayKeepItsWeights) {
  RunContent c = passing_content();
  for (Sample& s : c.steps[0].samples) s.advantage = 0;  // and ref_logp equals train_logp in step 0
  for (SampleText& t : c.texts[0]) t.advantage = 0;
  summarise_again(c, 0);
  for (auto& [name, t] : c.versions[1].tensors) t.weight = c.versions[0].tensors[name].weight;
  for (auto& engine : c.rollouts[1].engines)
    for (auto& [name, digest] : engine) digest = c.versions[0].tensors[name].weight;
  const Validation v = validate(c);
  EXPECT_TRUE(v.passed()) << to_text(v);
  EXPECT_EQ(gate(v, "weights_changed").figures["steps_with_signal"], 1);
}

// ---- Modes ------------------------------------------------------------------------------------

TEST(NativeMode, MismatchIsMeasuredNotJudged) {
  RunContent c = passing_content();
  c.plan.options.consistency = c.plan.options.strict_attention = c.plan.options.strict_ffn =
      c.plan.options.strict_logp = false;
  c.steps[0].samples[0].train_logp[0] -= 0.25f;
  summarise_again(c, 0);
  for (auto& r : c.ranks)
    for (auto& [name, op] : r.ops) op.strict = name.starts_with("run.");
  const Validation v = validate(c);
  EXPECT_TRUE(v.passed()) << to_text(v);
  EXPECT_EQ(gate(v, "kernels").figures["strict_ops"], 1) << "what belongs to no module";
  EXPECT_EQ(gate(v, "logprobs").figures["differ"], 1);
  EXPECT_EQ(gate(v, "logprobs").figures["max_abs"], 0.25);

  c.steps[0].samples[0].train_logp[1] = kNan;
  EXPECT_EQ(failed(validate(c)), (Failed{"logprobs"})) << "a NaN passes in no mode";
  c = passing_content();
  c.plan.options.consistency = false;
  c.steps[0].samples[0].train_logp[0] -= 0.25f;
  EXPECT_EQ(failed(validate(c)), (Failed{"logprobs"})) << "unreported mismatch";
}

TEST(NativeMode, EveryGroupChecksItsStrictModulesAndItsNativeOnes) {
  for (int group = 0; group < 8; ++group) {
    SCOPED_TRACE("attention, FFN, logp strict: " + std::to_string(group));
    RunContent c = passing_content();
    Options& o = c.plan.options;
    o.strict_attention = (group & 4) != 0;
    o.strict_ffn = (group & 2) != 0;
    o.strict_logp = (group & 1) != 0;
    o.consistency = group == 7;
    const std::pair<std::string, bool> modules[] = {
        {"attention", o.strict_attention}, {"ffn", o.strict_ffn}, {"logp", o.strict_logp}};
    for (const auto& [module, strict] : modules)
      for (auto& r : c.ranks) r.ops[module + ".gemm"].strict = strict;
    EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
    for (const auto& [module, strict] : modules) {
      OpReadback& other = c.ranks[2].ops[module + ".gemm"];
      other.strict = !strict;
      EXPECT_EQ(failed(validate(c)), Failed{"kernels"}) << module;
      other.strict = strict;
    }
  }
}

TEST(CudaGates, GraphsMustBeCapturedForPlannedSizesAndServeEveryDecodeStep) {
  RunContent c = passing_content();
  c.plan.options.backend = Backend::cuda;
  EXPECT_EQ(failed(validate(c)), Failed{"graphs"}) << "no readback at all";
  const GraphReadback good{{1, 2, 4}, {1, 2, 4}, {{1, 3}, {4, 100}}, 0};
  for (auto& r : c.ranks) r.graphs = good;
  EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
  EXPECT_NE(to_text(validate(c)).find("replays: 24 of size 1, 800 of size 4"), std::string::npos)
      << to_text(validate(c));
  const auto expect = [&](const GraphReadback& damaged, const std::string& said) {
    c.ranks[3].graphs = damaged;
    EXPECT_EQ(failed(validate(c)), Failed{"graphs"});
    EXPECT_NE(to_text(validate(c)).find(said), std::string::npos) << to_text(validate(c));
  };
  expect({{1, 2, 4}, {1, 4}, {{4, 7}}, 0}, "rank 3 captured no graph for batch size 2");
  expect({{1, 2, 4}, {1, 2, 4}, {}, 0}, "rank 3 replayed no graph");
  expect({{1, 2, 4}, {1, 2, 4}, {{4, 7}}, 2}, "rank 3 decoded 2 steps without a graph");
  expect({{1, 2}, {1, 2}, {{4, 7}}, 0}, "rank 3 replayed batch size 4, never captured");
  c.plan.options.trace_ops = true;
  EXPECT_EQ(gate(validate(c), "graphs").verdict, Verdict::not_applicable);
}

TEST(Gates, FolderThatIsNoRunIsBadInput) {
  TempDir dir;
  EXPECT_THROW(validate_run(dir.path()), InputError);
  EXPECT_THROW(validate_run(dir.path() / "missing"), InputError);
}
