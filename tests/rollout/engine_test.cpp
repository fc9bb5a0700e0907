// What a request gets does not depend on anything around it: not on the other requests, the batch
// or chunk sizes, the pages, the layout of the engine; and its log-probs are those that the trainer
// computes.

#include "rlk/rollout/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "comm/fork_ranks.h"
#include "model/model_fixture.h"
#include "rlk/train/trainer.h"

namespace rlk {
namespace {

constexpr int64_t kNew = 12;

std::vector<GenerateRequest> requests() {
  std::vector<GenerateRequest> all;
  const SamplingParams sampling[] = {{1, 1, -1}, {0.7f, 0.9f, -1}, {1.3f, 0.99f, 20}, {0, 1, -1}};
  for (int i = 0; i < 10; ++i) {
    GenerateRequest r;
    r.prompt_index = i / 2;
    r.sample_index = i % 2;
    const int length[] = {1, 17, 33, 40, 100};
    for (int t = 0; t < length[i / 2]; ++t)
      r.prompt.push_back(static_cast<int32_t>(mix64(i / 2 * 1000 + t) % 300));
    r.max_new = kNew;
    r.sampling = sampling[i % 4];
    all.push_back(std::move(r));
  }
  return all;
}

struct Variant {
  int tp = 1, cp = 1;
  int32_t page_size = 16;
  int64_t max_running = 16, max_batch_tokens = 512;
  int32_t look_ahead = 8;
  int32_t stop_every = 0;  // every n-th token id ends a response, beside two others
};

RolloutOptions options(const Topology& t, const Variant& v) {
  RolloutOptions o{};
  o.topology = t;
  o.page_size = v.page_size;
  o.pages_per_rank = 200;
  o.max_running = v.max_running;
  o.max_batch_tokens = v.max_batch_tokens;
  o.max_context = 256;
  o.stop = {1, 2};
  for (int32_t id = 3; v.stop_every > 0 && id < 300; id += v.stop_every) o.stop.push_back(id);
  o.look_ahead = v.look_ahead;
  return o;
}

std::string text_of(const std::vector<GenerateResult>& results) {
  std::string text;
  char word[32];
  for (const GenerateResult& r : results) {
    for (int32_t token : r.tokens) text += std::to_string(token) + " ";
    for (float logp : r.logp) {
      std::snprintf(word, sizeof word, "%08x ", std::bit_cast<uint32_t>(logp));
      text += word;
    }
    text += r.truncated ? "truncated\n" : "\n";
  }
  return text;
}

std::string generate(World& world, const Variant& v, const std::vector<GenerateRequest>& wanted) {
  const Topology t{
      .ranks = v.tp * v.cp, .tp = 1, .cp = v.tp * v.cp, .rollout_tp = v.tp, .rollout_cp = v.cp};
  test::RankModel model(world, test::small_model(16, false), t, true);
  model.weights.load(cpu_ops(1), test::random_reader(model.weights.tensors()));
  auto tp = world.group(t.rollout_tp_group(world.rank()), "rollout tp");
  Context context = model.context;
  context.tp = tp.get();
  RolloutEngine engine(context, world, options(t, v));
  return text_of(engine.generate(model.weights.view(t.rollout_slices(world.rank())), wanted, 5, 3));
}

// All ranks of the engine must say the same.
std::string run(const Variant& v, const std::vector<GenerateRequest>& wanted = requests()) {
  test::Ranks ranks(v.tp * v.cp, size_t{128} << 20, std::chrono::seconds(100),
                    [&](World& w) { return generate(w, v, wanted); });
  std::string first;
  for (const test::RankEnd& end : ranks.collect(std::chrono::seconds(110))) {
    if (first.empty()) first = end.text;
    EXPECT_EQ(end.text, first);
  }
  return first;
}

TEST(RolloutEngine, LayoutsGiveTheSameTokensAndLogProbs) {
  const std::string base = run({});
  EXPECT_EQ(std::count(base.begin(), base.end(), '\n'), 10) << base;
  for (const auto& [tp, cp] :
       {std::pair{2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {1, 4}, {2, 4}, {1, 8}})
    EXPECT_EQ(run({.tp = tp, .cp = cp}), base) << "rollout tp " << tp << " cp " << cp;
}

TEST(RolloutEngine, SchedulingAndPagesDoNotMatter) {
  const std::string base = run({});
  EXPECT_EQ(run({.page_size = 128}), base);
  EXPECT_EQ(run({.max_batch_tokens = 7}), base);
  EXPECT_EQ(run({.max_running = 1}), base);
  EXPECT_EQ(run({.tp = 2, .cp = 2, .max_running = 3, .max_batch_tokens = 20}), base);
}

// Rows that end inside a plan stay idle to its end, and change nothing for the others.
TEST(RolloutEngine, HowFarItLooksAheadDoesNotMatter) {
  for (const int32_t stop_every : {0, 5}) {
    const std::string base = run({.look_ahead = 1, .stop_every = stop_every});
    for (const int32_t ahead : {2, 3, 8, 100})
      EXPECT_EQ(run({.look_ahead = ahead, .stop_every = stop_every}), base) << ahead;
    EXPECT_EQ(run({.tp = 2, .cp = 2, .max_running = 3, .look_ahead = 5, .stop_every = stop_every}),
              base);
    EXPECT_EQ(run({.cp = 8, .look_ahead = 8, .stop_every = stop_every}), base);
  }
  EXPECT_NE(run({.stop_every = 5}), run({}));
}

TEST(RolloutEngine, TokensAreToldInOrder) {
  test::LoneWorld lone(size_t{256} << 20);
  const Topology t{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1, .rollout_cp = 1};
  test::RankModel model(*lone.world, test::small_model(16, false), t, true);
  model.weights.load(cpu_ops(1), test::random_reader(model.weights.tensors()));
  RolloutEngine engine(model.context, *lone.world, options(t, {}));
  const auto wanted = requests();
  std::vector<std::vector<int32_t>> told;
  for (const GenerateRequest& r : wanted) told.push_back(r.prompt);
  const auto results =
      engine.generate(model.weights.view({0, 8}), wanted, 5, 3,
                      [&](int32_t request, int32_t token) { told[request].push_back(token); });
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].tokens, told[i]);
}

TEST(RolloutEngine, ARequestAloneGetsWhatItGetsInABatch) {
  const auto all = requests();
  std::string alone;
  for (const GenerateRequest& r : all) alone += run({}, {r});
  EXPECT_EQ(alone, run({}));
}

TEST(RolloutEngine, KeysDecideWhatIsDrawn) {
  auto all = requests();
  const std::string base = run({}, {all[0]});
  all[0].sample_index = 7;
  EXPECT_NE(run({}, {all[0]}), base);
}

// The trainer's own forward pass, by memcmp, for sampled requests that share sampling values.
TEST(RolloutEngine, LogProbsAreTheTrainersBits) {
  test::LoneWorld lone(size_t{256} << 20);
  const Topology t{.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1, .rollout_cp = 1};
  test::RankModel model(*lone.world, test::small_model(16, false), t, true);
  model.weights.load(cpu_ops(1), test::random_reader(model.weights.tensors()));
  RolloutEngine engine(model.context, *lone.world, options(t, {}));
  for (const SamplingParams& sampling :
       {SamplingParams{1, 1, -1}, SamplingParams{0.7f, 0.9f, -1}, SamplingParams{1.3f, 0.99f, 20},
        SamplingParams{0, 1, -1}}) {
    auto wanted = requests();
    for (GenerateRequest& r : wanted) r.sampling = sampling;
    const auto results = engine.generate(model.weights.view({0, 8}), wanted, 5, 3);
    TrainerOptions o{};
    o.topology = t;
    o.adamw = {
        .lr = 0, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0, .clip_grad = 1};
    o.temperature = sampling.temperature;
    o.top_p = sampling.top_p;
    o.top_k = sampling.top_k;
    o.super_batch_tokens = 65536;
    o.max_tokens = 1024;
    o.page_size = 16;
    Trainer trainer(model.context, model.weights, *lone.world, o);
    std::vector<Sample> samples;
    for (size_t i = 0; i < wanted.size(); ++i) {
      Sample s;
      s.prompt = wanted[i].prompt_index;
      s.sample = wanted[i].sample_index;
      s.prompt_len = static_cast<int32_t>(wanted[i].prompt.size());
      s.tokens = results[i].tokens;
      samples.push_back(std::move(s));
    }
    trainer.score(model.weights.view({0, 8}), false, samples, &Sample::train_logp);
    for (size_t i = 0; i < samples.size(); ++i)
      for (int j = 0; j < samples[i].response_len(); ++j)
        EXPECT_EQ(std::bit_cast<uint32_t>(samples[i].train_logp[j]),
                  std::bit_cast<uint32_t>(results[i].logp[j]))
            << "T " << sampling.temperature << " request " << i << " token " << j;
  }
}

}  // namespace
}  // namespace rlk
