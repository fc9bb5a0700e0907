// decode_advance: what a row becomes after its token.

#include <algorithm>

#include "entries.h"

namespace rlk::cpu {

void decode_advance(Stream, const DecodeAdvanceArgs& a) {
  for (int64_t r = 0; r < a.T; ++r) {
    if (a.seq[r] < 0) continue;
    const int32_t token = a.token[r], n = a.count[r]++;
    a.drawn[r * a.drawn_stride + n] = {token, a.logp[r]};
    const bool stops = std::find(a.stop, a.stop + a.n_stop, token) != a.stop + a.n_stop;
    if (stops || n + 1 == a.limit[r] || token < 0 || token >= a.vocab) {
      a.seq[r] = -1;
      a.segments[r].len = 0;
      continue;
    }
    a.ids[r] = token;
    ++a.position[r];
    ++a.segments[r].position;
    ++a.keys[r].position;
  }
}

}  // namespace rlk::cpu
