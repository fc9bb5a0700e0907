#pragma once
// manifest.json as an object (docs/formats.md). Private to src/run, apart from the digest, which
// the gates check.

#include "rlk/run/run_writer.h"

namespace rlk {

// The manifest of a run that is about to start: status running, no exits, no files, digest set.
Json make_manifest(const std::string& plan_json, const ManifestInputs&);

}  // namespace rlk
