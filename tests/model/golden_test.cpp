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

#include "model/model_fixture.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "rlk/train/trainer.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr double kLogitsNormError = 1.5e-2;
constexpr double kGradientNormError = 4e-2;
constexpr double kGradientCosine = 0.999;
constexpr double kLogpNormError = 6e-3;
constexpr double kLogpWorstScaled =
    0.1;  // worst token, times T: an ulp or two of a bf16 logit near 16

struct Agreement {
  double error = 0, reference = 0, dot = 0, norm = 0, worst = 0;
  void add(double x, double expected) {
    error += (x - expected) * (x - expected);
    reference += expected * expected;
    norm += x * x;
    dot += x * expected;
    worst = std::max(worst, std::abs(x - expected));
    if (!std::isfinite(x)) error = INFINITY;
  }
  double relative() const { return std::sqrt(error / reference); }
  double cosine() const { return dot / std::sqrt(norm * reference); }
};

std::vector<fs::path> golden_models() {
  const char* root = std::getenv("RLK_GOLDEN");
  const fs::path dir = root ? fs::path(root) : fs::path(RLK_SOURCE_DIR) / "tests/golden";
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(dir))
    if (fs::exists(entry.path() / "expected.safetensors")) models.push_back(entry.path());
  std::sort(models.begin(), models.end());
  return models;
}

class Golden : public testing::TestWithParam<fs::path> {
 protected:
  Golden()
      : config(read_model_config(GetParam())),
        weights_file(GetParam() / "model.safetensors"),
        expected(GetParam() / "expected.safetensors"),
        lone(size_t{1} << 30),
        model(*lone.world, config, {.ranks = 1, .tp = 1, .cp = 1, .rollout_tp = 1}, false) {
    model.weights.load(cpu_ops(1), test::read_from(weights_file));
    const Json info = parse_json(read_file(GetParam() / "expected.json"), "expected.json");
    for (const Json& s : info["sequences"]) {
      const std::string name = "seq" + std::to_string(samples.size()) + ".";
      Sample sample{.prompt = static_cast<int64_t>(samples.size())};
      sample.prompt_len = s["first_response_token"].get<int32_t>();
      for (int64_t id : values<int64_t>(name + "ids"))
        sample.tokens.push_back(static_cast<int32_t>(id));
      samples.push_back(std::move(sample));
    }
    response_tokens = info["response_tokens"].get<double>();
  }

  template <class T>
  std::vector<T> values(const std::string& name) const {
    const TensorInfo* info = expected.find(name);
    if (!info) throw Error("no tensor " + name);
    const auto* p = reinterpret_cast<const T*>(expected.data(*info));
    return {p, p + info->elements()};
  }

  Trainer make_trainer(float temperature) {
    TrainerOptions options{};
    options.topology = model.topology;
    options.adamw = {
        .lr = 0, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0, .clip_grad = 1};
    options.temperature = temperature;
    options.top_p = 1;
    options.top_k = -1;
    options.super_batch_tokens = 65536;
    options.max_tokens = 100;
    options.page_size = 16;
    return Trainer(model.context, model.weights, *lone.world, options);
  }

  // Only sequences that predict something can be samples.
  std::vector<Sample> trainable() const {
    std::vector<Sample> some;
    for (const Sample& s : samples)
      if (s.response_len() > 0 && s.prompt_len > 0) some.push_back(s);
    return some;
  }

  ModelConfig config;
  SafetensorsFile weights_file, expected;
  test::LoneWorld lone;
  test::RankModel model;
  std::vector<Sample> samples;
  double response_tokens = 0;
};

// Logits of every position of one sequence, through the rollout form of the forward pass.
std::vector<bf16> sequence_logits(const test::RankModel& model, const std::vector<int32_t>& ids) {
  const Context& ctx = model.context;
  const ModelConfig& m = ctx.config;
  const auto T = static_cast<int64_t>(ids.size());
  const int32_t pages = static_cast<int32_t>((T + 15) / 16);
  std::vector<int32_t> position(T), seq(T, 0), table(pages), index(T);
  for (int64_t t = 0; t < T; ++t) position[t] = index[t] = static_cast<int32_t>(t);
  for (int32_t p = 0; p < pages; ++p) table[p] = pages - 1 - p;  // any order of pages
  const AttentionSegment segment{0, 0, static_cast<int32_t>(T), 0};
  const Batch batch{.T = T,
                    .ids = ids.data(),
                    .position = position.data(),
                    .seq = seq.data(),
                    .segments = &segment,
                    .n_segments = 1,
                    .max_len = segment.len,
                    .max_context = segment.len};
  KvCache cache{};
  kv_page_layout(cache, static_cast<int>(m.KH), static_cast<int>(m.Dh), 16);
  std::vector<bf16> k(pages * cache.page_stride), v(k.size());
  cache.k[0] = k.data();
  cache.v[0] = v.data();
  cache.page_table = table.data();
  cache.max_pages = pages;
  DeviceBuffer acts(*ctx.ffn), rest(*ctx.ffn), head_memory(*ctx.ffn);
  LayerActs a = layer_acts_at(acts.ensure(layer_acts_bytes(m, T, 8, false)), m, T, 8, false);
  std::vector<float> partial(T * m.D);
  ForwardScratch scratch{partial.data(), static_cast<bf16*>(rest.ensure(T * m.D * 2)), nullptr};
  const WeightsView view = model.weights.view({0, 8});
  embed(ctx, view, batch, a.x);
  for (int l = 0; l < m.L; ++l)
    forward_layer(ctx, view, l, batch, cache, nullptr, l == 0 ? nullptr : a.x_mid, a, scratch);
  const std::vector<float> ones(T, 1.0f);
  const RowSampling sampling{ones.data(), ones.data(), nullptr, nullptr, false};
  HeadActs head =
      head_acts_at(head_memory.ensure(head_acts_bytes(ctx, T, 8, false)), ctx, T, 8, false);
  head_logits(ctx, view, a.x_mid, scratch.delta, index.data(), T, sampling, head);
  return {head.logits, head.logits + T * m.padded_vocab()};
}

TEST_P(Golden, LogitsAgreeWithFp64) {
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::vector<float> want = values<float>("seq" + std::to_string(i) + ".logits");
    const std::vector<bf16> got = sequence_logits(model, samples[i].tokens);
    Agreement a;
    for (size_t t = 0; t < samples[i].tokens.size(); ++t)
      for (int64_t j = 0; j < config.vocab; ++j)
        a.add(to_float(got[t * config.padded_vocab() + j]), want[t * config.vocab + j]);
    std::printf("%s seq%zu (%zu tokens): logits relative norm error %.2e\n",
                GetParam().filename().c_str(), i, samples[i].tokens.size(), a.relative());
    EXPECT_LE(a.relative(), kLogitsNormError);
  }
}

TEST_P(Golden, LogProbsAgreeWithFp64AtThreeTemperatures) {
  for (const char* temperature : {"1.0", "0.7", "1.3"}) {
    Trainer trainer = make_trainer(std::strtof(temperature, nullptr));
    std::vector<Sample> some = trainable();
    trainer.score(model.weights.view({0, 8}), false, some, &Sample::train_logp);
    Agreement a;
    for (const Sample& s : some) {
      const auto want = values<float>("seq" + std::to_string(s.prompt) + ".logp.T" + temperature);
      for (int32_t t = 0; t < s.response_len(); ++t)
        a.add(s.train_logp[t], want[s.prompt_len - 1 + t]);
    }
    std::printf("%s T=%s: log-prob relative norm error %.2e, worst token %.2e\n",
                GetParam().filename().c_str(), temperature, a.relative(), a.worst);
    EXPECT_LE(a.relative(), kLogpNormError);
    EXPECT_LE(a.worst * std::strtod(temperature, nullptr), kLogpWorstScaled);
  }
}

TEST_P(Golden, EveryGradientAgreesWithFp64) {
  Trainer trainer = make_trainer(0.7f);
  std::vector<Sample> some = trainable();
  trainer.update(some, 0, static_cast<int>(some.size()), 1, [&](int i, int t, float) {
    const auto adv = values<float>("seq" + std::to_string(some[i].prompt) + ".adv");
    return -static_cast<double>(adv[some[i].prompt_len + t]) / response_tokens;
  });
  const auto& tensors = model.weights.tensors();
  std::vector<std::vector<float>> gradient(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) gradient[t].resize(tensors[t].rows * tensors[t].cols);
  for (const auto& o : trainer.optimizer().owned()) {
    const TensorSpec& t = tensors[o.unit.tensor];
    for (int64_t e = 0; e < o.unit.count; ++e) {
      const int64_t at = o.unit.begin + e, row = at / t.slice_cols, col = at % t.slice_cols;
      const int64_t r = t.cut == Cut::rows ? o.unit.slice * t.slice_rows + row : row;
      const int64_t c = t.cut == Cut::columns ? o.unit.slice * t.slice_cols + col : col;
      gradient[o.unit.tensor][r * t.cols + c] = trainer.optimizer().gradient()[o.at + e];
    }
  }
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
              GetParam().filename().c_str(), tensors.size(), worst, least);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(golden_models()),
                         [](const auto& p) { return p.param.filename().string(); });

}  // namespace
}  // namespace rlk
