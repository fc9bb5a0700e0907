#pragma once
// A profile: what a host and a task look like, as JSON (docs/formats.md, `rlk.profile.v1`). Plain
// values; reading is pure apart from the file itself, and reports every defect at once.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/profile/model_config.h"

namespace rlk {

// A value of `defaults` or `verify`, as the text that the command line would take.
struct ProfileValue {
  std::string option;  // long name
  std::string text;
  std::string where;  // "profile.json: defaults.tp"
};

struct Profile {
  std::filesystem::path file;  // absolute
  std::string name;

  struct Requirements {
    std::string backend =
        "auto";  // cpu, cuda, or auto: cuda where a GPU and the CUDA build are there
    int ranks = 8;
    std::vector<std::string> gpu_models;  // substrings of the device name, any of them; empty = all
    double gpu_memory_gib = 0;            // least memory a GPU; 0 = any
  } requirements;

  std::string shape;  // of the model; what `rlk plan` assumes where its files are not there
  std::optional<SyntheticModel> synthetic;  // model.source "synthetic": the model has no files

  struct Paths {  // absolute; nothing where the profile says null or nothing
    std::optional<std::filesystem::path> workspace, model_root, ref_load, prompt_data, output_root;
  } paths;

  struct TaskSpec {
    std::string reward, prompt_key = "prompt", label_key = "label";
    bool chat_template = true, thinking = true;
    std::string prompt_data_sha256;  // 64 hex digits, or empty
  } task;

  std::vector<ProfileValue> defaults, verify;
  int ranks_per_gpu = 1;
  std::vector<std::string> ignored;  // keys of a profile of the known system that mean nothing here
};

// Takes rlk.profile.v1, and of the known system's rlkernel.repro.profile.v1 the paths and defaults.
// Throws InputError with every defect, each as "FILE: path.of.key: what; what would be right".
Profile read_profile(const std::filesystem::path& file);
Profile parse_profile(std::string_view text, const std::filesystem::path& file);

}  // namespace rlk
