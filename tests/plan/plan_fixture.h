#pragma once
// Inputs of a plan over the bundled tiny model, as the tests vary them.

#include "rlk/base/json.h"
#include "rlk/plan/make_plan.h"

namespace rlk::test {

inline Profile tiny_profile() {
  const Json json = {{"schema_version", "rlk.profile.v1"},
                     {"name", "test"},
                     {"requirements", {{"backend", "cpu"}, {"ranks", 8}}},
                     {"paths",
                      {{"model_root", RLK_SOURCE_DIR "/profiles/tiny"},
                       {"prompt_data", RLK_SOURCE_DIR "/profiles/tiny/prompts.jsonl"},
                       {"output_root", "/runs"}}},
                     {"task", {{"reward", "boxed"}}},
                     {"defaults", {{"max-response-len", 64}, {"rollout-batch-size", 16}}},
                     {"verify", {{"rollout-batch-size", 4}}}};
  return parse_profile(json.dump(), "/profiles/test.json");
}

inline PlanInputs inputs(std::vector<GivenOption> command_line = {},
                         Command command = Command::verify) {
  PlanInputs in;
  in.command = command;
  in.command_line = std::move(command_line);
  in.profile = tiny_profile();
  in.host.cores = 16;
  in.working_folder = "/here";
  in.default_run_id = "id";
  return in;
}

// The defects of the inputs, one a line; empty when they make a plan.
inline std::string defects(const PlanInputs& in) {
  try {
    make_plan(in);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace rlk::test
