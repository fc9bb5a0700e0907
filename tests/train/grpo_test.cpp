#include "rlk/train/grpo.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rlk {
namespace {

Sample sample(int64_t prompt, double reward, std::vector<float> old_logp, std::vector<float> ref) {
  Sample s;
  s.prompt = prompt;
  s.reward = reward;
  s.prompt_len = 2;
  s.tokens.assign(2 + old_logp.size(), 1);
  s.rollout_logp = std::move(old_logp);
  s.ref_logp = std::move(ref);
  return s;
}

TEST(Grpo, AdvantagesAreNormalisedInsideEachPrompt) {
  std::vector<Sample> s{sample(0, 1, {-1}, {}), sample(0, 0, {-1}, {}), sample(0, 0, {-1}, {}),
                        sample(0, 1, {-1}, {}), sample(1, 5, {-1}, {}), sample(1, 5, {-1}, {})};
  set_advantages(s, true);
  EXPECT_DOUBLE_EQ(s[0].advantage, 0.5 / (0.5 + 1e-6));
  EXPECT_DOUBLE_EQ(s[1].advantage, -0.5 / (0.5 + 1e-6));
  EXPECT_EQ(s[4].advantage, 0);
  set_advantages(s, false);
  EXPECT_EQ(s[0].advantage, 0.5);
}

TEST(Grpo, EqualLogProbsGiveRatioExactlyOne) {
  Sample s = sample(0, 1, {-3.1415927f}, {-3.0f});
  s.advantage = 0.7;
  const TokenLoss loss = token_loss(s, 0, -3.1415927f, {});
  EXPECT_EQ(loss.ratio, 1.0);
  EXPECT_EQ(loss.derivative, -0.7);
  EXPECT_FALSE(loss.clipped);
}

TEST(Grpo, ClippingStopsTheGradientOnlyWhereItBinds) {
  Sample s = sample(0, 1, {0.0f}, {0.0f});
  s.advantage = 1;
  EXPECT_EQ(token_loss(s, 0, 0.5f, {}).derivative, 0);  // ratio e^0.5 > 1.2, gains no more
  EXPECT_LT(token_loss(s, 0, -0.5f, {}).derivative, 0);
  s.advantage = -1;
  EXPECT_GT(token_loss(s, 0, 0.5f, {}).derivative, 0);
  EXPECT_EQ(token_loss(s, 0, -0.5f, {}).derivative, 0);
}

// The derivative against central differences of the loss itself, for every KL estimator.
TEST(Grpo, DerivativeAgreesWithFiniteDifferences) {
  for (int estimator : {1, 2, 3})
    for (float logp : {-2.0f, -1.1f, -0.95f})
      for (double advantage : {1.3, -0.4}) {
        Sample s = sample(0, 1, {-1.0f}, {-1.4f});
        s.advantage = advantage;
        const GrpoOptions o{.eps_clip = 0.2, .kl_coef = 0.3, .kl_estimator = estimator};
        auto value = [&](float x) {
          const TokenLoss l = token_loss(s, 0, x, o);
          return l.policy + o.kl_coef * l.kl;
        };
        const float h = 0x1p-10f;
        const double slope = (value(logp + h) - value(logp - h)) / (2 * h);
        EXPECT_NEAR(token_loss(s, 0, logp, o).derivative, slope, 1e-5)
            << "k" << estimator << " logp " << logp << " advantage " << advantage;
      }
}

TEST(Grpo, TokenWeightsAddUpToOne) {
  std::vector<Sample> s{sample(0, 1, {-1, -1, -1}, {}), sample(0, 0, {-1}, {})};
  for (bool token_mean : {false, true}) {
    double sum = 0;
    for (int i = 0; i < 2; ++i)
      sum += s[i].response_len() * token_weight(s, 0, 2, i, {.token_mean = token_mean});
    EXPECT_DOUBLE_EQ(sum, 1);
  }
  EXPECT_DOUBLE_EQ(token_weight(s, 0, 2, 0, {.token_mean = true}), 0.25);
  EXPECT_DOUBLE_EQ(token_weight(s, 0, 2, 0, {.token_mean = false}), 1.0 / 6);
}

}  // namespace
}  // namespace rlk
