// Mutations of the engine, each caught by the check that is named here and by no other: the real
// step loop on eight ranks, with one defect in it, then the gates on the run directory that it
// leaves.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "comm/fork_ranks.h"
#include "rlk/base/error.h"
#include "rlk/gate/gates.h"
#include "rlk/plan/make_plan.h"
#include "rlk/run/compare.h"
#include "rlk/run/run_reader.h"
#include "rlk/run/run_writer.h"
#include "rlk/run/trace.h"
#include "temp_dir.h"
#include "worker/step_loop.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;
using Failed = std::set<std::string>;

constexpr std::chrono::milliseconds kTimeout{120'000};
constexpr int kRanks = 8;

// Two training layouts' worth of difference: 4 x 2 against engines of two ranks that hold slices
// which they do not train.
const std::vector<GivenOption> kLayout = {{"tp", "4"}, {"cp", "2"}, {"rollout-tp", "2"}};
// Of every run, unless it says otherwise.
const std::vector<GivenOption> kSize = {
    {"rollout-batch-size", "4"}, {"samples-per-prompt", "4"}, {"max-response-len", "24"}};

struct Mutation {
  std::function<OpTables(const Plan&, int rank)> tables = make_op_tables;
  StepHooks hooks = {};
};

Plan plan_of(const fs::path& root, const std::string& id, std::vector<GivenOption> options) {
  PlanInputs in;
  in.profile = read_profile(RLK_SOURCE_DIR "/profiles/tiny.json");
  in.host.cores = 2;
  in.working_folder = root;
  for (const GivenOption& size : kSize)
    if (std::none_of(options.begin(), options.end(),
                     [&](const GivenOption& o) { return o.name == size.name; }))
      options.push_back(size);
  in.command_line = std::move(options);
  for (const GivenOption& o :
       std::vector<GivenOption>{{"output-root", root.string()}, {"run-id", id}})
    in.command_line.push_back(o);
  return make_plan(in);
}

std::string step_through(const Plan& plan, World& world, const Mutation& mutation) {
  StatusWriter status(open("/dev/null", O_WRONLY));
  Rank rank(plan, world, mutation.tables(plan, world.rank()), kTimeout);
  run_steps(rank, status, mutation.hooks);
  return "";
}

// A run directory as `rlk verify` leaves it, short of its seal.
class Mutations : public testing::Test {
 protected:
  // What the ranks had to say, one line for each that failed.
  std::string run(const std::string& id, const std::vector<GivenOption>& options,
                  const Mutation& mutation) {
    const Plan plan = plan_of(dir_.path(), id, options);
    ManifestInputs inputs;
    inputs.model_files["model.safetensors"] = std::string(64, '0');
    inputs.data_sha256 = std::string(64, '0');
    inputs.commands.assign(kRanks, {"rlk", "worker"});
    RunWriter writer = RunWriter::create(plan, inputs);
    test::Ranks ranks(kRanks, plan.arena_bytes, kTimeout, [&](World& world) {
      try {
        return step_through(plan, world, mutation);
      } catch (const std::exception& e) {
        world.abort(e.what());
        throw;
      }
    });
    std::string said;
    std::vector<RankExit> exits;
    for (const test::RankEnd& end : ranks.collect(kTimeout)) {
      exits.push_back({static_cast<int>(exits.size()), end.text.empty() ? 0 : 1, end.status});
      if (!end.text.empty()) said += end.text + "\n";
    }
    writer.finish(said.empty() ? RunStatus::finished : RunStatus::failed, said, exits);
    return said;
  }

  // Runs a mutation that the ranks do not notice; gives the gates' view of it.
  Validation gates(const Mutation& mutation, const std::vector<GivenOption>& options = kLayout,
                   const std::string& id = "mutated") {
    EXPECT_EQ(run(id, options, mutation), "");
    return validate_run(dir_.path() / id);
  }

  fs::path at(const std::string& id) const { return dir_.path() / id; }

 private:
  test::TempDir dir_;
};

void expect_failed(const Validation& v, const Failed& expected) {
  Failed failed;
  for (const GateResult& g : v.gates)
    if (g.verdict == Verdict::fail) failed.insert(g.name);
  EXPECT_EQ(failed, expected) << to_text(v);
}

std::string detail(const Validation& v, const std::string& gate) {
  for (const GateResult& g : v.gates)
    if (g.name == gate) return g.detail;
  return "";
}

const TensorSpec& tensor(const Rank& rank, const std::string& name) {
  const auto& all = rank.weights.tensors();
  return *std::find_if(all.begin(), all.end(), [&](const TensorSpec& t) { return t.name == name; });
}

// One unit in the last place of one element of the slice, on one rank, right before step 1 samples.
StepHooks one_ulp(int index, const std::string& name, int slice, int64_t element) {
  return {.before_rollout = [=](Rank& rank, int64_t step) {
    if (step == 1 && rank.index() == index)
      rank.weights.at(tensor(rank, name), slice)[element].bits ^= 1;
  }};
}

// Weight version 0 again before step 1 samples: what a sync that never came would leave.
StepHooks stale_weights(const std::function<bool(int rank)>& is_stale) {
  auto kept = std::make_shared<std::vector<bf16>>();
  return {.before_rollout = [=](Rank& rank, int64_t step) {
    bf16* arena = rank.weights.arena();
    if (step == 0) kept->assign(arena, arena + rank.weights.layout().elements());
    if (step == 1 && is_stale(rank.index())) std::copy(kept->begin(), kept->end(), arena);
    rank.everyone->barrier(nullptr);
  }};
}

// ---- A tree re-associated ---------------------------------------------------------------------

// The slices' chains of the strict gemm, joined from left to right instead of by the aligned tree;
// `round` is applied to each.
void sequential_gemm(Stream stream, const GemmArgs& args, float (*round)(float)) {
  const size_t n = static_cast<size_t>(args.T * args.N);
  std::vector<float> sum(n, 0.0f), part(n);
  for (int s = 0; s < args.slices; ++s) {
    GemmArgs one = args;
    one.x = args.x + s * args.ks;
    one.w = args.w + s * args.w_slice;
    one.y = part.data();
    one.slices = 1;
    one.ldy = args.N;
    one.out_f32 = true;
    cpu_ops(1).gemm(stream, one);
    for (size_t i = 0; i < n; ++i) sum[i] = s == 0 ? round(part[i]) : sum[i] + round(part[i]);
  }
  for (int64_t t = 0; t < args.T; ++t)
    for (int64_t j = 0; j < args.N; ++j) {
      const float value = sum[static_cast<size_t>(t * args.N + j)];
      if (args.out_f32)
        static_cast<float*>(args.y)[t * args.ldy + j] = value;
      else
        static_cast<bf16*>(args.y)[t * args.ldy + j] = to_bf16(value);
    }
}

void reassociated_gemm(Stream stream, const GemmArgs& args) {
  sequential_gemm(stream, args, [](float x) { return x; });
}

void twice_rounded_gemm(Stream stream, const GemmArgs& args) {
  sequential_gemm(stream, args, [](float x) { return to_float(to_bf16(x)); });
}

// Partials leave their rank rounded to bf16: the tree's lower levels and its upper ones differ.
void rounded_partials_gemm(Stream stream, const GemmArgs& args) {
  cpu_ops(1).gemm(stream, args);
  if (!args.out_f32) return;
  auto* y = static_cast<float*>(args.y);
  for (int64_t t = 0; t < args.T; ++t)
    for (int64_t n = 0; n < args.N; ++n)
      y[t * args.ldy + n] = to_float(to_bf16(y[t * args.ldy + n]));
}

Mutation mutated_gemm(void (*gemm)(Stream, const GemmArgs&)) {
  return {.tables = [gemm](const Plan&, int) {
    static Ops table = cpu_ops(1);
    table.gemm = gemm;
    return counted_tables(table, table, table, table);
  }};
}

std::vector<GivenOption> layout(const std::string& tp, const std::string& rollout_tp) {
  return {{"tp", tp}, {"rollout-tp", rollout_tp}, {"trace-ops", "true"}};
}

// ---- The claims -------------------------------------------------------------------------------

TEST_F(Mutations, NoneIsFoundInASoundRun) {
  const Validation v = gates({});
  expect_failed(v, {});
  EXPECT_EQ(v.gates.size(), 12u);
  EXPECT_TRUE(v.passed());
}

// The embedding of a token that never occurs: no log-prob can show it.
TEST_F(Mutations, OneUlpThatNoTokenReadsIsCaughtByRolloutWeights) {
  const Validation v = gates({.hooks = one_ulp(0, "model.embed_tokens.weight", 3, 34 * 128 + 5)});
  expect_failed(v, {"rollout_weights"});
  EXPECT_NE(detail(v, "rollout_weights").find("step 1: engine 0: model.embed_tokens.weight"),
            std::string::npos)
      << detail(v, "rollout_weights");
}

// Slice 3 is sampled with on rank 0 and trained on ranks 2 and 3. One ulp of one weight is mostly
// rounded away on its way to the logits, so the log-probs may agree.
TEST_F(Mutations, OneUlpInARolloutWeightIsCaughtByRolloutWeights) {
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  const Validation v = gates({.hooks = one_ulp(0, name, 3, 1000)});
  EXPECT_NE(detail(v, "rollout_weights").find("step 1: engine 0: " + name), std::string::npos)
      << detail(v, "rollout_weights");
}

TEST_F(Mutations, OneUlpInACopyOfAnEngineIsCaughtByRolloutWeights) {
  const Validation v = gates({.hooks = one_ulp(1, "model.layers.2.mlp.down_proj.weight", 0, 7)},
                             {{"tp", "4"}, {"cp", "2"}, {"rollout-tp", "4"}, {"rollout-cp", "2"}});
  EXPECT_NE(detail(v, "rollout_weights").find("step 1: engine 0: model.layers.2.mlp.down_proj"),
            std::string::npos)
      << to_text(v);
}

TEST_F(Mutations, AStaleVersionOnOneRankIsCaughtByRolloutWeightsAndLogprobs) {
  const Validation v = gates({.hooks = stale_weights([](int rank) { return rank == 3; })});
  expect_failed(v, {"rollout_weights", "logprobs"});
  EXPECT_NE(detail(v, "rollout_weights").find("step 1: engine "), std::string::npos);
}

// Both engines then agree about every log-prob, with the wrong weights.
TEST_F(Mutations, AStaleVersionOnEveryRankIsCaughtByRolloutWeights) {
  const Validation v = gates({.hooks = stale_weights([](int) { return true; })});
  expect_failed(v, {"rollout_weights"});
}

TEST_F(Mutations, TwoSwappedTokensAreCaughtByLogprobs) {
  const auto swap_tokens = [](Rank&, Trajectory& t) {
    Sample& s = t.samples[5];
    for (size_t i = static_cast<size_t>(s.prompt_len); i + 1 < s.tokens.size(); ++i)
      if (s.tokens[i] != s.tokens[i + 1]) return std::swap(s.tokens[i], s.tokens[i + 1]);
    throw Error("the sample has no two tokens to swap");
  };
  const Validation v = gates({.hooks = {.sampled = swap_tokens}});
  expect_failed(v, {"logprobs"});
  const Sample s = RunReader(at("mutated")).sidecar(0).samples[5];
  const std::string place = "step 0, prompt " + std::to_string(s.prompt) + ", sample " +
                            std::to_string(s.sample) + ", position ";
  EXPECT_EQ(detail(v, "logprobs").substr(0, place.size()), place);
}

TEST_F(Mutations, ASampleDroppedFromTheRecordIsCaughtBySamples) {
  const auto drop = [](Rank&, Trajectory& t) { t.samples.erase(t.samples.begin() + 6); };
  expect_failed(gates({.hooks = {.recorded = drop}}), {"samples"});
}

TEST_F(Mutations, ASampleDroppedByAnEngineEndsTheRun) {
  const auto drop = [](Rank&, Trajectory& t) { t.samples.pop_back(); };
  const std::string said = run("dropped", kLayout, {.hooks = {.sampled = drop}});
  EXPECT_NE(said.find("step 0: the engines returned 15 samples, planned were 16"),
            std::string::npos)
      << said;
  const auto forget = [](Rank&, Trajectory& t) { t.samples[2].rollout_logp.clear(); };
  const std::string other = run("forgotten", kLayout, {.hooks = {.sampled = forget}});
  EXPECT_NE(other.find("no engine answered prompt "), std::string::npos) << other;
  EXPECT_FALSE(validate_run(at("forgotten")).passed());
}

// The two engines cut the same sums differently. Sums that are only re-associated differ in their
// last fp32 bits, which seldom survive the roundings to bf16 on the way to a log-prob: of the
// bundled model's, 0 in 1822. So this gate sees sums that are rounded on the way; the tests below
// see the tree itself.
TEST_F(Mutations, RoundedPartialsAreCaughtByLogprobsWhereLayoutsDiffer) {
  expect_failed(gates(mutated_gemm(rounded_partials_gemm), layout("8", "1")), {"logprobs"});
}

// Column-parallel sums are whole on every rank; a layout cuts the output and down projections.
TEST_F(Mutations, AReassociatedTreeIsNamedByDebugBetweenTheEngines) {
  gates(mutated_gemm(reassociated_gemm), layout("8", "1"));
  const TraceComparison phases = compare_trace_phases(at("mutated"));
  ASSERT_TRUE(phases.first);
  EXPECT_TRUE(phases.first->op == "o_proj" || phases.first->op == "down") << phases.first->text();
}

// Equal layouts agree with each other about the wrong sum: another run must tell.
TEST_F(Mutations, AReassociatedTreeIsCaughtByCompareAndNamedByDebug) {
  expect_failed(gates({}, layout("4", "4"), "sound"), {});
  expect_failed(gates(mutated_gemm(reassociated_gemm), layout("4", "4")), {});
  EXPECT_TRUE(compare_runs(at("sound"), at("mutated")).first);
  const TraceComparison traces = compare_traces(at("sound"), at("mutated"));
  ASSERT_TRUE(traces.first);
  EXPECT_TRUE(Failed({"qkv", "o_proj", "gate_up", "down", "logits"}).contains(traces.first->op))
      << traces.first->text();
  EXPECT_EQ(traces.first->kind, TraceDifference::Kind::value);
}

// An error that shows in every row is traced to the first gemm of all.
TEST_F(Mutations, AGemmThatRoundsTwiceIsNamedByDebug) {
  expect_failed(gates({}, layout("4", "4"), "sound"), {});
  expect_failed(gates(mutated_gemm(twice_rounded_gemm), layout("4", "4")), {});
  const TraceComparison traces = compare_traces(at("sound"), at("mutated"));
  ASSERT_TRUE(traces.first);
  EXPECT_EQ(traces.first->op, "qkv") << traces.first->text();
  EXPECT_EQ(traces.first->at.layer, 0);
  EXPECT_EQ(traces.first->at.position, 0);
}

// The same, unmutated: one run's layouts and another's make one trajectory.
TEST_F(Mutations, SoundRunsOfTwoLayoutsAreEqualInEveryOp) {
  expect_failed(gates({}, layout("4", "4"), "a"), {});
  expect_failed(gates({}, layout("8", "1"), "b"), {});
  const RunComparison runs = compare_runs(at("a"), at("b"));
  EXPECT_FALSE(runs.first) << runs.first->text();
  const TraceComparison traces = compare_traces(at("a"), at("b"));
  EXPECT_FALSE(traces.first) << traces.first->text();
  EXPECT_GT(traces.compared, 0u);
}

}  // namespace
}  // namespace rlk
