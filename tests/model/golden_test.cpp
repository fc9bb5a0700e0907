// fp64 values of Hugging Face's Qwen3 against rlk's forward and backward pass. Reads every model
// directory under $RLK_GOLDEN (default: tests/golden), so the same program runs on others.
//
// Tolerances: weights and activations are bf16 (8 bits: 2^-9 relative a rounding). A residual
// stream of L layers collects about a dozen such roundings a layer, which random-sign adds to ~1e-2
// of a logit; gradients pass the same chain twice.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "model/lone_model.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"

namespace rlk::test {
namespace {

namespace fs = std::filesystem;

constexpr double kLogitsNormError = 1.5e-2;
constexpr double kGradientNormError = 4e-2;
constexpr double kGradientCosine = 0.999;
constexpr double kLogpNormError = 6e-3;
constexpr double kLogpWorstScaled =
    0.1;  // worst token, times T: an ulp or two of a bf16 logit near 16

using Case = std::pair<fs::path, std::string>;  // a model, a backend

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const fs::path& model : golden_models()) {
    all.push_back({model, "cpu"});
    if (runs_on_cuda(model)) all.push_back({model, "cuda"});
  }
  return all;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string why;
    if (backend_ops(GetParam().second, &why) == nullptr) {
      if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
      GTEST_SKIP() << why;
    }
    const fs::path dir = GetParam().first;
    const SafetensorsFile weights(dir / "model.safetensors");
    expected.emplace(dir / "expected.safetensors");
    model =
        std::make_unique<LoneModel>(GetParam().second == "cuda" ? Backend::cuda : Backend::cpu,
                                    read_model_config(dir), size_t{1} << 28, filled_from(weights));
    const Json info = parse_json(read_file(dir / "expected.json"), "expected.json");
    for (const Json& s : info["sequences"]) {
      Sample sample{.prompt = static_cast<int64_t>(samples.size())};
      sample.prompt_len = s["first_response_token"].get<int32_t>();
      for (int64_t id : values<int64_t>(sequence(samples.size()) + "ids"))
        sample.tokens.push_back(static_cast<int32_t>(id));
      samples.push_back(std::move(sample));
    }
    response_tokens = info["response_tokens"].get<double>();
  }

  static std::string sequence(int64_t i) { return "seq" + std::to_string(i) + "."; }
  static std::string name() {
    return GetParam().first.filename().string() + " on " + GetParam().second;
  }

  template <class T>
  std::vector<T> values(const std::string& name) const {
    const TensorInfo* info = expected->find(name);
    if (!info) throw Error("no tensor " + name);
    const auto* p = reinterpret_cast<const T*>(expected->data(*info));
    return {p, p + info->elements()};
  }

  // Only sequences that predict something can be samples.
  std::vector<Sample> trainable() const {
    std::vector<Sample> some;
    for (const Sample& s : samples)
      if (s.response_len() > 0 && s.prompt_len > 0) some.push_back(s);
    return some;
  }

  std::optional<SafetensorsFile> expected;
  std::unique_ptr<LoneModel> model;
  std::vector<Sample> samples;
  double response_tokens = 0;
};

TEST_P(Golden, LogitsAgreeWithFp64) {
  const ModelConfig& m = model->config;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<float> want = values<float>(sequence(i) + "logits");
    const std::vector<bf16> got = model->logits(samples[i].tokens);
    Agreement a;
    for (size_t t = 0; t < samples[i].tokens.size(); ++t)
      for (int64_t j = 0; j < m.vocab; ++j)
        a.add(to_float(got[t * m.padded_vocab() + j]), want[t * m.vocab + j]);
    std::printf("%s, sequence %zu of %zu tokens: logits relative norm error %.2e\n", name().c_str(),
                i, samples[i].tokens.size(), a.relative());
    EXPECT_LE(a.relative(), kLogitsNormError);
  }
}

TEST_P(Golden, LogProbsAgreeWithFp64AtThreeTemperatures) {
  for (const char* temperature : {"1.0", "0.7", "1.3"}) {
    Trainer trainer = model->trainer(std::strtof(temperature, nullptr));
    std::vector<Sample> some = trainable();
    trainer.score(model->rank.view(), false, some, &Sample::train_logp);
    Agreement a;
    for (const Sample& s : some) {
      const auto want = values<float>(sequence(s.prompt) + "logp.T" + temperature);
      for (int32_t t = 0; t < s.response_len(); ++t)
        a.add(s.train_logp[t], want[s.prompt_len - 1 + t]);
    }
    std::printf("%s, T=%s: log-prob relative norm error %.2e, worst token %.2e\n", name().c_str(),
                temperature, a.relative(), a.worst);
    EXPECT_LE(a.relative(), kLogpNormError);
    EXPECT_LE(a.worst * std::strtod(temperature, nullptr), kLogpWorstScaled);
  }
}

TEST_P(Golden, EveryGradientAgreesWithFp64) {
  Trainer trainer = model->trainer(0.7f);
  std::vector<Sample> some = trainable();
  trainer.update(some, 0, static_cast<int>(some.size()), 1, [&](int i, int t, float) {
    const auto adv = values<float>(sequence(some[i].prompt) + "adv");
    return -static_cast<double>(adv[some[i].prompt_len + t]) / response_tokens;
  });
  const auto gradient = model->gradients(trainer);
  const auto& tensors = model->rank.weights().tensors();
  double worst = 0, least = 1;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto want = values<bf16>("grad." + tensors[t].name);
    ASSERT_EQ(want.size(), gradient[t].size()) << tensors[t].name;
    Agreement a;
    for (size_t e = 0; e < want.size(); ++e) a.add(gradient[t][e], to_float(want[e]));
    worst = std::max(worst, a.relative());
    least = std::min(least, a.cosine());
    EXPECT_LE(a.relative(), kGradientNormError) << tensors[t].name;
    EXPECT_GE(a.cosine(), kGradientCosine) << tensors[t].name;
  }
  std::printf("%s: %zu gradients, worst relative norm error %.2e, least cosine %.6f\n",
              name().c_str(), tensors.size(), worst, least);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(cases()), [](const auto& p) {
  return p.param.first.filename().string() + "_" + p.param.second;
});

}  // namespace
}  // namespace rlk::test
