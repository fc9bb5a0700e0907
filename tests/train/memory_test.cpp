// The memory plan's bounds hold for what the trainer allocates, and are not far above it.

#include <gtest/gtest.h>

#include "model/model_fixture.h"
#include "rlk/plan/make_plan.h"
#include "rlk/train/trainer.h"

namespace rlk {
namespace {

constexpr int64_t kPrompt = 128, kResponse = 8064, kSamples = 8;

Plan plan_of(int cp) {
  PlanInputs in;
  in.profile.emplace();
  in.profile->requirements.backend = "cuda";
  in.profile->requirements.ranks = cp;
  in.profile->requirements.gpu_memory_gib = 1000;
  in.profile->paths.output_root = "/runs";
  in.profile->shape = "qwen3-8b";
  in.profile->synthetic = SyntheticModel{"qwen3-8b", 0, kPrompt};
  in.profile->task.reward = "synthetic-hash";
  in.command_line = {
      {"tp", "1"}, {"rollout-tp", "1"}, {"max-response-len", std::to_string(kResponse)}};
  in.default_run_id = "id";
  return make_plan(in);
}

void expect_bound(const Plan& plan, const char* item, int64_t bytes) {
  const auto planned = static_cast<double>(plan.memory.at(item));
  EXPECT_LE(static_cast<double>(bytes), planned) << item;
  EXPECT_GE(static_cast<double>(bytes), 0.93 * planned) << item;
}

class MemoryPlan : public testing::TestWithParam<int> {};

TEST_P(MemoryPlan, BoundsWhatTheTrainerAllocates) {
  const int cp = GetParam();
  const Plan plan = plan_of(cp);
  const ModelConfig& m = plan.model;
  std::vector<Sample> samples(kSamples);
  for (Sample& s : samples) {
    s.prompt_len = kPrompt;
    s.tokens.resize(kPrompt + kResponse);
  }
  const auto batches = make_super_batches(samples, 0, kSamples, cp, plan.super_batch_tokens);
  ASSERT_EQ(batches.size(), 1u);
  const SuperBatch& batch = batches[0];
  const int64_t T = batch.T, S = batch.seq_begin.back();

  test::LoneWorld lone(size_t{1} << 20);
  const auto tp = lone.world->group({0}, "tp");
  const Ops& ops = cpu_ops(1);
  const Context ctx{.attention = &ops,
                    .ffn = &ops,
                    .logp = &ops,
                    .stream = nullptr,
                    .tp = tp.get(),
                    .config = m,
                    .rope = nullptr,
                    .trace = nullptr};
  AttentionBwdArgs bounds{};
  bounds.S = S;
  expect_bound(plan, "train.activations", m.L * layer_acts_bytes(m, T, kSlices, true));
  expect_bound(plan, "train.backward",
               backward_scratch_bytes(ctx, T, S, kSlices, kSlices / cp, bounds));
  if (cp > 1) expect_bound(plan, "train.gathered", CpExchange::gathered_bytes(m, T, kSlices, cp));
  const Topology t = plan.options.topology;
  expect_bound(plan, "optimizer.state", Optimizer::state_bytes(m, t, 0));
  const ArenaLayout layout(m, kSlices);
  expect_bound(plan, "weights.bf16", layout.elements() * 2);
  expect_bound(plan, "optimizer.gradients",
               (2 * layout.layer_elements() + layout.outer_elements()) * 4);
  int64_t chunk = 0;
  size_t chunks = 0;
  for (const RankRows& rows : batch.ranks) {
    const auto all = leaf_chunks(rows.head_leaves, plan.options.max_tokens_per_gpu);
    chunks = std::max(chunks, all.size());
    for (const LeafChunk& c : all) chunk = std::max(chunk, c.end - c.begin);
  }
  int64_t joins = 0;
  for (size_t n = chunks; n > 1; n /= 2) ++joins;
  expect_bound(
      plan, "train.head",
      head_acts_bytes(ctx, chunk, kSlices, false) + joins * kSlices * m.vocab_slice() * m.D * 4);
}

INSTANTIATE_TEST_SUITE_P(Cp, MemoryPlan, testing::Values(1, 2, 4, 8));

}  // namespace
}  // namespace rlk
