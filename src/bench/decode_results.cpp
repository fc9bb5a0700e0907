#include "decode_results.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace rlk::bench {

std::string first_difference(const std::vector<GenerateResult>& got,
                             const std::vector<GenerateResult>& want) {
  char text[160];
  for (size_t i = 0; i < std::max(got.size(), want.size()); ++i) {
    if (i >= got.size() || i >= want.size() || got[i].tokens.size() != want[i].tokens.size() ||
        got[i].logp.size() != want[i].logp.size()) {
      std::snprintf(text, sizeof text, "request %zu: another number of tokens", i);
      return text;
    }
    const GenerateResult &a = got[i], &b = want[i];
    const size_t prompt = a.tokens.size() - a.logp.size();
    for (size_t j = 0; j < a.logp.size(); ++j) {
      const int32_t x = a.tokens[prompt + j], y = b.tokens[prompt + j];
      if (x == y && std::bit_cast<uint32_t>(a.logp[j]) == std::bit_cast<uint32_t>(b.logp[j]))
        continue;
      std::snprintf(text, sizeof text, "request %zu token %zu: %d (%a), expected %d (%a)", i, j, x,
                    static_cast<double>(a.logp[j]), y, static_cast<double>(b.logp[j]));
      return text;
    }
  }
  return "";
}

}  // namespace rlk::bench
