// The CUDA backend against the CPU backend, on the bundled model and on $RLK_GOLDEN's (default:
// tests/golden). The orders of sums differ (docs/numerics.md), the roundings to bf16 fall in the
// same places, so the tolerances are tighter than those against fp64.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "model/lone_model.h"

namespace rlk::test {
namespace {

namespace fs = std::filesystem;

constexpr double kLogits = 7e-3, kLogp = 2e-3, kGradient = 2.5e-2;  // relative norm errors
constexpr double kGradientCosine = 0.9995;

std::vector<fs::path> models() {
  std::vector<fs::path> all{fs::path(RLK_SOURCE_DIR) / "profiles/tiny"};
  for (const fs::path& model : golden_models())
    if (runs_on_cuda(model)) all.push_back(model);
  return all;
}

class Backends : public testing::TestWithParam<fs::path> {
 protected:
  void SetUp() override {
    std::string why;
    if (backend_ops("cuda", &why) == nullptr) {
      if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
      GTEST_SKIP() << why;
    }
    const SafetensorsFile file(GetParam() / "model.safetensors");
    const ModelConfig config = read_model_config(GetParam());
    for (const Backend backend : {Backend::cpu, Backend::cuda})
      model[backend == Backend::cuda] =
          std::make_unique<LoneModel>(backend, config, size_t{1} << 28, filled_from(file));
    for (int i = 0; i < 3; ++i) {
      Sample s{.prompt = i};
      s.prompt_len = 5 + i;
      for (int t = 0; t < 17 + 40 * i; ++t)
        s.tokens.push_back(static_cast<int32_t>(mix64(static_cast<uint64_t>(1000 * i + t)) %
                                                model[0]->config.vocab));
      samples.push_back(std::move(s));
    }
  }
  std::string name() const { return GetParam().filename().string(); }

  std::unique_ptr<LoneModel> model[2];  // CPU, CUDA
  std::vector<Sample> samples;
};

TEST_P(Backends, LogitsAgree) {
  for (const Sample& s : samples) {
    const auto cpu = model[0]->logits(s.tokens), cuda = model[1]->logits(s.tokens);
    const ModelConfig& m = model[0]->config;
    Agreement a;
    for (size_t t = 0; t < s.tokens.size(); ++t)
      for (int64_t j = 0; j < m.vocab; ++j)
        a.add(to_float(cuda[t * m.padded_vocab() + j]), to_float(cpu[t * m.padded_vocab() + j]));
    std::printf("%s, %zu tokens: logits apart by %.2e\n", name().c_str(), s.tokens.size(),
                a.relative());
    EXPECT_LE(a.relative(), kLogits);
    EXPECT_GT(a.reference, 0);
  }
}

TEST_P(Backends, LogProbsAndGradientsAgree) {
  std::vector<Sample> scored[2];
  std::vector<std::vector<float>> gradient[2];
  for (int side : {0, 1}) {
    Trainer trainer = model[side]->trainer(0.7f);
    scored[side] = samples;
    trainer.score(model[side]->rank.view(), false, scored[side], &Sample::train_logp);
    std::vector<Sample> some = samples;
    trainer.update(some, 0, static_cast<int>(some.size()), 1,
                   [](int i, int t, float) { return (i + t) % 2 == 0 ? -0.01 : 0.004; });
    gradient[side] = model[side]->gradients(trainer);
  }
  Agreement logp;
  for (size_t i = 0; i < samples.size(); ++i)
    for (size_t t = 0; t < scored[0][i].train_logp.size(); ++t)
      logp.add(scored[1][i].train_logp[t], scored[0][i].train_logp[t]);
  EXPECT_GT(logp.reference, 0);
  EXPECT_LE(logp.relative(), kLogp);
  double worst = 0, least = 1;
  for (size_t t = 0; t < gradient[0].size(); ++t) {
    Agreement a;
    for (size_t e = 0; e < gradient[0][t].size(); ++e) a.add(gradient[1][t][e], gradient[0][t][e]);
    const std::string& tensor = model[0]->rank.weights().tensors()[t].name;
    EXPECT_GT(a.reference, 0) << tensor;
    EXPECT_LE(a.relative(), kGradient) << tensor;
    EXPECT_GE(a.cosine(), kGradientCosine) << tensor;
    worst = std::max(worst, a.relative());
    least = std::min(least, a.cosine());
  }
  std::printf("%s: log-probs apart by %.2e, %zu gradients by at most %.2e, least cosine %.6f\n",
              name().c_str(), logp.relative(), gradient[0].size(), worst, least);
}

INSTANTIATE_TEST_SUITE_P(Models, Backends, testing::ValuesIn(models()), [](const auto& p) {
  return p.param.parent_path().filename().string() + "_" + p.param.filename().string();
});

}  // namespace
}  // namespace rlk::test
