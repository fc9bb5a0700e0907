#pragma once
// Fingerprints of what the ranks hold (docs/formats.md). Each piece is hashed where it lives and
// the digests are gathered; only the digests travel. Collective over all ranks; every rank gets the
// result.

#include "rank.h"
#include "rlk/run/records.h"

namespace rlk {

// The trained weights; with_state: also the reduced gradients, masters and moments of the last
// update.
VersionFingerprints fingerprint_version(Rank&, uint64_t version, bool with_state);

// What every rollout engine (and each of its CP ranks' copies) holds now.
RolloutFingerprints fingerprint_rollout(Rank&, int64_t step, uint64_t version);

}  // namespace rlk
