#pragma once
// A small, complete run directory that passes every gate: what the tests of run and gate read,
// compare and damage. A test changes the content before it is written, so that one defect is all
// that is wrong, or the files afterwards.

#include <filesystem>
#include <string>
#include <vector>

#include "rlk/plan/plan.h"
#include "rlk/run/run_writer.h"

namespace rlk::test {

// Everything that a run writes, in one place.
struct RunContent {
  Plan plan;
  ManifestInputs inputs;
  std::vector<Trajectory> steps;
  std::vector<StepMetrics> metrics;
  std::vector<std::vector<SampleText>> texts;
  std::vector<VersionFingerprints> versions;
  std::vector<RolloutFingerprints> rollouts;
  std::vector<RankRecord> ranks;
  std::vector<RankExit> exits;
  RunStatus status = RunStatus::finished;
};

// Two steps of 2 prompts x 3 samples on 8 ranks, two engines.
RunContent passing_content();

// `content` as a run directory root/run-id; returns its path.
std::filesystem::path write_run(const std::filesystem::path& root, const RunContent& content);

// The ops that a strict step calls, as a rank's readback.
std::map<std::string, OpReadback> strict_ops();

}  // namespace rlk::test
