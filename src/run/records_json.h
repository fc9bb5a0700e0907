#pragma once
// weights/*.json and evidence/rank-N.json <-> records (docs/formats.md). Private to src/run.

#include "rlk/run/records.h"

namespace rlk {

Json to_json(const VersionFingerprints&);
Json to_json(const RolloutFingerprints&);
Json to_json(const RankRecord&);

// `where` names the file in InputErrors.
VersionFingerprints version_from_json(const Json&, const std::string& where);
RolloutFingerprints rollout_from_json(const Json&, const std::string& where);
RankRecord rank_from_json(const Json&, const std::string& where);

}  // namespace rlk
