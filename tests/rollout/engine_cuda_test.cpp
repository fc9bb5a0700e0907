// The engine on a GPU: decode steps as captured graphs, several of them before the host looks, with
// dependent launches that read weights and older keys early. None of it changes a bit.

#include <gtest/gtest.h>

#include <bit>
#include <memory>

#include "device/harness.h"
#include "model/lone_model.h"
#include "rlk/rollout/engine.h"

namespace rlk::test {
namespace {

constexpr size_t kArena = size_t{4} << 30;  // takes no engine's pages back

ModelConfig model_config() {
  ModelConfig m;
  m.vocab = 2000;
  m.D = 512;
  m.F = 1024;
  m.L = 3;
  m.H = 16;
  m.KH = 8;
  m.Dh = 64;
  m.max_position = 2304;
  return m;
}

class CudaEngine : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    model_ = std::make_unique<LoneModel>(Backend::cuda, model_config(), kArena,
                                         [](Weights& weights, const Ops& cuda) {
                                           weights.load(cuda, random_reader(weights.tensors()));
                                         });
  }

  RolloutOptions options() const {
    RolloutOptions o{};
    o.topology = LocalRank::topology();
    o.page_size = kKvPageSize;
    o.pages_per_rank = 160;
    o.max_running = 16;
    o.max_batch_tokens = 1024;
    o.max_context = model_config().max_position;
    o.stop = {1, 2};
    return o;
  }
  std::vector<GenerateResult> generate(const RolloutOptions& o,
                                       const std::vector<GenerateRequest>& wanted) {
    RolloutEngine engine(model_->context, model_->rank.world(), o);
    auto results = engine.generate(model_->rank.view(), wanted, 5, 3);
    replays_ = 0;
    for (const auto& [size, times] : engine.graph_replays()) replays_ += times;
    captured_ = engine.captured_sizes();
    return results;
  }

  std::unique_ptr<LoneModel> model_;
  uint64_t replays_ = 0;
  std::vector<int64_t> captured_;
};

std::vector<GenerateRequest> requests(int64_t max_new) {
  const SamplingParams sampling[] = {{1, 1, -1}, {0.7f, 0.9f, -1}, {1.3f, 0.99f, 20}, {0, 1, -1}};
  const int length[] = {1, 127, 128, 1000, 1023, 1030};
  std::vector<GenerateRequest> all;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest r;
    r.prompt_index = i / 2;
    r.sample_index = i % 2;
    for (int t = 0; t < length[i / 2]; ++t)
      r.prompt.push_back(static_cast<int32_t>(mix64(i / 2 * 5000 + t) % 2000));
    r.max_new = max_new + i % 5;
    r.sampling = sampling[i % 4];
    all.push_back(std::move(r));
  }
  return all;
}

void expect_same(const std::string& what, const std::vector<GenerateResult>& got,
                 const std::vector<GenerateResult>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string name = what + ", request " + std::to_string(i);
    EXPECT_EQ(got[i].tokens, want[i].tokens) << name;
    EXPECT_TRUE(same_bits(name, got[i].logp, want[i].logp));
    EXPECT_EQ(got[i].truncated, want[i].truncated) << name;
  }
}

TEST_P(CudaEngine, GraphsLookAheadAndBatchDoNotMatter) {
  const auto wanted = requests(60);
  RolloutOptions plain = options();
  plain.graphs = false;
  plain.look_ahead = 1;
  const auto base = generate(plain, wanted);
  EXPECT_EQ(replays_, 0u);
  for (const bool graphs : {false, true})
    for (const int32_t ahead : {1, 3, 8, 64})
      for (const int64_t running : {3, 16}) {
        RolloutOptions o = options();
        o.graphs = graphs;
        o.look_ahead = ahead;
        o.max_running = running;
        o.pages_per_rank = running * 10;
        expect_same((graphs ? "graphs, " : "no graphs, ") + std::to_string(ahead) + " ahead, " +
                        std::to_string(running) + " running",
                    generate(o, wanted), base);
        EXPECT_EQ(replays_ > 0, graphs);
        EXPECT_EQ(captured_.empty() ? 0 : captured_.back(), graphs ? running : 0);
      }
}

TEST_P(CudaEngine, StopsInsideAPlanLeaveTheOthersAlone) {
  const auto wanted = requests(60);
  RolloutOptions o = options();
  for (int32_t id = 3; id < 2000; id += 20) o.stop.push_back(id);
  RolloutOptions plain = o;
  plain.graphs = false;
  plain.look_ahead = 1;
  const auto base = generate(plain, wanted);
  size_t stopped = 0;
  for (const GenerateResult& r : base) stopped += !r.truncated;
  EXPECT_GT(stopped, wanted.size() / 2);
  expect_same("graphs", generate(o, wanted), base);
}

// What decode drew step by step, a prefill of prompt and first tokens goes on with: keys written by
// earlier steps are the prefill's, whatever was loaded early.
TEST_P(CudaEngine, ResumingFromAnyTokenDrawsTheSame) {
  std::vector<GenerateRequest> wanted;
  for (const GenerateRequest& r : requests(40))
    if (r.sample_index == 0) wanted.push_back(r);  // a prompt index has one prompt
  const auto base = generate(options(), wanted);
  for (const size_t keep : {1u, 13u, 39u}) {
    std::vector<GenerateRequest> resumed;
    std::vector<size_t> index;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (base[i].logp.size() <= keep) continue;
      resumed.push_back(wanted[i]);
      resumed.back().prompt.assign(
          base[i].tokens.begin(),
          base[i].tokens.begin() + static_cast<int64_t>(wanted[i].prompt.size() + keep));
      resumed.back().max_new -= static_cast<int64_t>(keep);
      index.push_back(i);
    }
    ASSERT_FALSE(resumed.empty());
    const auto results = generate(options(), resumed);
    for (size_t j = 0; j < resumed.size(); ++j) {
      const GenerateResult& whole = base[index[j]];
      EXPECT_EQ(results[j].tokens, whole.tokens) << "request " << index[j];
      EXPECT_TRUE(same_bits("request " + std::to_string(index[j]), results[j].logp,
                            {whole.logp.begin() + static_cast<int64_t>(keep), whole.logp.end()}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backend, CudaEngine, ::testing::Values("cuda"));

}  // namespace
}  // namespace rlk::test
