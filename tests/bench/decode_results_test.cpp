// The check behind `rlk bench decode`: one bit of one log-prob is a difference.

#include "bench/decode_results.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rlk::bench {
namespace {

std::vector<GenerateResult> results() {
  return {{{5, 6, 7, 8}, {-1.5f, -0.25f}, true}, {{9, 3}, {-2.f}, false}};
}

TEST(DecodeResults, TheSameBitsAreNoDifference) {
  EXPECT_EQ(first_difference(results(), results()), "");
}

TEST(DecodeResults, ATokenALogProbOrALengthIsOne) {
  auto other = results();
  other[0].tokens[3] = 4;
  EXPECT_EQ(first_difference(other, results()).rfind("request 0 token 1: 4 ", 0), 0u);
  other = results();
  other[1].logp[0] = std::nextafter(-2.f, 0.f);
  EXPECT_EQ(first_difference(other, results()).rfind("request 1 token 0: 3 ", 0), 0u);
  other = results();
  other[1].tokens.push_back(1);
  other[1].logp.push_back(-1.f);
  EXPECT_EQ(first_difference(other, results()), "request 1: another number of tokens");
  other = results();
  other.pop_back();
  EXPECT_EQ(first_difference(results(), other), "request 1: another number of tokens");
}

}  // namespace
}  // namespace rlk::bench
