// The layout does not matter (R1, R7): one update of a small random model over every TP x CP layout
// gives the same log-probs, the same reduced gradients and the same new weights, byte for byte; so
// do micro-batches, page sizes and recompute.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "comm/fork_ranks.h"
#include "model/model_fixture.h"
#include "rlk/base/philox.h"
#include "rlk/base/sha256.h"
#include "rlk/train/trainer.h"

namespace rlk {
namespace {

struct Case {
  const char* name;
  int64_t H;
  bool tied;
  int64_t layers = 2;
};

// Lengths chosen so that leaves are unequal, some chunks are empty, and one sample has a single
// input.
std::vector<Sample> random_samples() {
  std::vector<Sample> samples;
  const int lengths[] = {2, 37, 130, 5, 64, 19};
  for (int i = 0; i < 6; ++i) {
    Sample s;
    s.prompt = i / 2;
    s.sample = i % 2;
    s.prompt_len = std::max(1, lengths[i] / 4);
    for (int t = 0; t < lengths[i]; ++t)
      s.tokens.push_back(static_cast<int32_t>(mix64(i * 1000 + t) % 300));
    s.advantage = i % 2 ? 1.0 : -0.7;
    for (int t = 0; t < s.response_len(); ++t) s.rollout_logp.push_back(-5.0f);
    for (int t = 0; t < s.response_len(); ++t) s.ref_logp.push_back(-5.5f);
    samples.push_back(std::move(s));
  }
  return samples;
}

ModelConfig config_of(const Case& c) {
  ModelConfig config = test::small_model(c.H, c.tied);
  config.L = c.layers;
  return config;
}

struct Variant {
  Topology topology;
  int64_t super_batch_tokens = 65536;
  int32_t page_size = 16;
  float top_p = 1;
  int64_t activation_bytes = INT64_MAX;
  int64_t max_tokens = 1024;
};

// What one rank saw, layout-independent: log-probs, gradient norm and, by (tensor, slice, piece),
// gradient and weight digests.
std::string one_update(World& world, const Case& c, const Variant& v) {
  test::RankModel model(world, config_of(c), v.topology, false);
  model.weights.load(cpu_ops(1), test::random_reader(model.weights.tensors()));
  TrainerOptions o{};
  o.topology = v.topology;
  o.grpo.kl_coef = 0.01;
  o.adamw = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.1, .clip_grad = 1};
  o.temperature = 0.8f;
  o.top_p = v.top_p;
  o.top_k = -1;
  o.super_batch_tokens = v.super_batch_tokens;
  o.max_tokens = v.max_tokens;
  o.page_size = v.page_size;
  o.activation_bytes = v.activation_bytes;
  Trainer trainer(model.context, model.weights, world, o);
  std::vector<Sample> samples = random_samples();
  std::vector<Sample> scored = samples;
  trainer.score(model.weights.view(v.topology.train_slices(world.rank())), false, scored,
                &Sample::train_logp);
  const UpdateResult r = trainer.update(samples, 0, 6, 1);

  std::string report;
  char line[160];
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t bytes = samples[i].train_logp.size() * 4;
    if (std::memcmp(samples[i].train_logp.data(), scored[i].train_logp.data(), bytes) != 0)
      throw Error("score() and update() disagree on sample " + std::to_string(i));
    std::snprintf(line, sizeof line, "logp %zu %s\n", i,
                  hex(sha256(samples[i].train_logp.data(), bytes)).c_str());
    report += line;
  }
  std::snprintf(line, sizeof line, "norm %a\n", r.gradient_norm);
  report += line;
  for (const auto& u : trainer.optimizer().owned()) {
    const TensorSpec& t = model.weights.tensors()[u.unit.tensor];
    const bf16* w = model.weights.at(t, u.unit.slice) + u.unit.begin;
    std::snprintf(line, sizeof line, "%03d %d %lld %.16s %.16s\n", u.unit.tensor, u.unit.slice,
                  static_cast<long long>(u.unit.begin),
                  hex(sha256(trainer.optimizer().gradient() + u.at, u.unit.count * 4)).c_str(),
                  hex(sha256(w, u.unit.count * 2)).c_str());
    report += line;
  }
  return report;
}

// All ranks' lines, each once. Fails when two ranks say different things of the same piece.
std::map<std::string, std::string> run_layout(const Case& c, const Variant& v) {
  test::Ranks ranks(v.topology.ranks, size_t{64} << 20, std::chrono::seconds(100),
                    [&](World& w) { return one_update(w, c, v); });
  std::map<std::string, std::string> lines;
  for (const test::RankEnd& end : ranks.collect(std::chrono::seconds(110))) {
    EXPECT_EQ(end.status, 0) << end.text;
    std::istringstream text(end.text);
    for (std::string line; std::getline(text, line);) {
      const size_t cut = line.find(' ', line.find(' ') + 1);
      const std::string key = line.starts_with("norm") ? "norm" : line.substr(0, cut + 2);
      const auto [it, added] = lines.emplace(key, line);
      EXPECT_EQ(it->second, line) << "ranks disagree";
    }
  }
  return lines;
}

std::string first_difference(const std::map<std::string, std::string>& a,
                             const std::map<std::string, std::string>& b) {
  if (a.size() != b.size())
    return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " records";
  for (const auto& [key, line] : a)
    if (b.at(key) != line) return line + "\n" + b.at(key);
  return "";
}

class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, GiveTheSameGradientsAndWeights) {
  const auto alone = run_layout(GetParam(), {{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1}});
  ASSERT_GT(alone.size(), 100u);
  for (const auto& [tp, cp] : {std::pair{1, 8}, {2, 4}, {4, 2}, {8, 1}, {2, 1}, {1, 2}}) {
    const auto other =
        run_layout(GetParam(), {{.ranks = tp * cp, .tp = tp, .cp = cp, .rollout_tp = 1}});
    EXPECT_EQ(first_difference(alone, other), "") << "tp " << tp << " cp " << cp;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Layouts,
                         testing::Values(Case{"group1_tied", 8, true}, Case{"group2", 16, false},
                                         Case{"group3", 24, false}, Case{"group4_tied", 32, true},
                                         Case{"group5", 40, false}, Case{"group8", 64, false}),
                         [](const auto& p) { return p.param.name; });

constexpr Case kModel{"group2", 16, false};

TEST(Invariance, PagesAndScoringChunksDoNotMatter) {
  const Topology layout{.ranks = 4, .tp = 2, .cp = 2, .rollout_tp = 1};
  const auto base = run_layout(kModel, {layout});
  EXPECT_EQ(first_difference(base, run_layout(kModel, {layout, 65536, 128})), "");
}

// One, two, four and eight chunks of the head's rows, a whole leaf at least; with supports cut as
// well.
TEST(Invariance, ChunksOfTheHeadDoNotMatter) {
  const std::vector<Sample> samples = random_samples();
  for (const float top_p : {1.0f, 0.9f}) {
    const Topology one{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1};
    const auto base = run_layout(kModel, {one, 65536, 16, top_p});
    const Leaves leaves = make_super_batches(samples, 0, 6, 1, 65536)[0].ranks[0].head_leaves;
    std::set<size_t> counts;
    for (const int64_t rows : {1, 64, 128, 192, 256, 512}) {
      counts.insert(leaf_chunks(leaves, rows).size());
      Variant v{one, 65536, 16, top_p};
      v.max_tokens = rows;
      EXPECT_EQ(first_difference(base, run_layout(kModel, v)), "") << rows << " rows";
      v.topology = {.ranks = 4, .tp = 2, .cp = 2, .rollout_tp = 1};
      EXPECT_EQ(first_difference(base, run_layout(kModel, v)), "") << rows << " rows, tp 2 cp 2";
    }
    EXPECT_EQ(counts, (std::set<size_t>{1, 2, 4, 8}));
  }
}

// All layers' activations kept, some, one at a time.
TEST(Invariance, KeptActivationsDoNotMatter) {
  constexpr Case kDeep{"deep", 16, false, 4};
  const Topology layout{.ranks = 4, .tp = 2, .cp = 2, .rollout_tp = 1};
  const auto base = run_layout(kDeep, {layout});
  const ModelConfig config = config_of(kDeep);
  const int64_t T = make_super_batches(random_samples(), 0, 6, 2, 65536)[0].T;
  const int64_t each = layer_acts_bytes(config, T, 4, true), residual = T * config.D * 2;
  std::set<int> kept;
  for (const int64_t bytes : {int64_t{0}, each + 4 * residual, 2 * each + 3 * residual - 1,
                              2 * each + 3 * residual, 3 * each + 2 * residual, 4 * each}) {
    kept.insert(kept_layers(config, T, 4, bytes));
    Variant v{layout};
    v.activation_bytes = bytes;
    EXPECT_EQ(first_difference(base, run_layout(kDeep, v)), "") << bytes << " bytes";
  }
  EXPECT_EQ(kept, (std::set<int>{0, 1, 2, 4}));
}

TEST(Invariance, LimitedSupportsAreTheSameInEveryLayout) {
  const auto a =
      run_layout(kModel, {{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1}, 65536, 16, 0.9f});
  const auto b =
      run_layout(kModel, {{.ranks = 8, .tp = 4, .cp = 2, .rollout_tp = 1}, 65536, 16, 0.9f});
  EXPECT_EQ(first_difference(a, b), "");
}

// Super-batches are part of the rule: several of them agree over layouts, and the comparison sees
// the difference to one.
TEST(Invariance, SuperBatchesAgreeOverLayoutsAndDifferFromOne) {
  const Topology one{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1};
  const Topology eight{.ranks = 8, .tp = 2, .cp = 4, .rollout_tp = 1};
  const auto a = run_layout(kModel, {one, 100});
  EXPECT_EQ(first_difference(a, run_layout(kModel, {eight, 100})), "");
  EXPECT_NE(first_difference(a, run_layout(kModel, {one, 65536})), "");
}

}  // namespace
}  // namespace rlk
