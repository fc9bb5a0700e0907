// Every gate passes on a sound run directory; what has no signal or belongs to another mode is not
// judged.

#include <gtest/gtest.h>

#include <limits>

#include "gate/judged_run.h"
#include "rlk/base/error.h"

namespace rlk::test {

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

  c.steps[0].samples[0].train_logp[1] = std::numeric_limits<float>::quiet_NaN();
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
    const std::pair<std::string, bool> ops[] = {{"attention.gemm", o.strict_attention},
                                                {"ffn.gemm", o.strict_ffn},
                                                {"ffn.gemm_swiglu", o.strict_ffn},
                                                {"logp.gemm", o.strict_logp}};
    for (const auto& [op, strict] : ops)
      for (auto& r : c.ranks) r.ops[op].strict = strict;
    EXPECT_TRUE(validate(c).passed()) << to_text(validate(c));
    for (const auto& [op, strict] : ops) {
      OpReadback& other = c.ranks[2].ops[op];
      other.strict = !strict;
      EXPECT_EQ(failed(validate(c)), Failed{"kernels"}) << op;
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

}  // namespace rlk::test
