#include "repro_profile.h"

#include <algorithm>

#include "rlk/base/json_reader.h"
#include "rlk/profile/option_table.h"

namespace rlk {
namespace {

void read_paths(const Json& paths, Profile& profile, std::vector<Diagnostic>& defects) {
  const std::filesystem::path folder = profile.file.parent_path();
  for (const auto& [key, value] : paths.items()) {
    auto* path = key == "workspace"     ? &profile.paths.workspace
                 : key == "model_root"  ? &profile.paths.model_root
                 : key == "ref_load"    ? &profile.paths.ref_load
                 : key == "prompt_data" ? &profile.paths.prompt_data
                 : key == "output_root" ? &profile.paths.output_root
                                        : nullptr;
    if (path == nullptr) {
      profile.ignored.push_back("paths." + key);
    } else if (value.is_string() && !value.get<std::string>().empty()) {
      *path = (folder / value.get<std::string>()).lexically_normal();
    } else if (!value.is_null()) {
      defects.push_back(
          {profile.file.string() + ": paths." + key, shown(value), "must be a path, or null"});
    }
  }
}

// Its version pins speak of other software.
void read_requirements(const Json& requirements, Profile& profile,
                       std::vector<Diagnostic>& defects) {
  for (const auto& [key, value] : requirements.items()) {
    const std::string where = profile.file.string() + ": requirements." + key;
    if (key == "gpus") {
      const int64_t gpus = value.is_number_unsigned() ? value.get<int64_t>() : 0;
      if (gpus == 1 || gpus == 2 || gpus == 4 || gpus == 8)
        profile.requirements.ranks = static_cast<int>(gpus);
      else
        defects.push_back({where, shown(value), "must be 1, 2, 4 or 8"});
    } else if (key == "gpu_model" && value.is_string()) {
      if (!value.get<std::string>().empty())
        profile.requirements.gpu_models = {value.get<std::string>()};
    } else if (key != "backend") {
      profile.ignored.push_back("requirements." + key);
    } else if (value != "cuda") {
      defects.push_back({where, shown(value), "must be cuda"});
    }
  }
}

// Names of the known system are ours or their aliases, with dashes or underscores.
const OptionSpec* option_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  const OptionSpec* spec = find_option(key);
  return spec != nullptr && spec->in_profile ? spec : nullptr;
}

void read_defaults(const Json& defaults, Profile& profile, std::vector<Diagnostic>& defects) {
  for (const auto& [key, value] : defaults.items()) {
    const OptionSpec* spec = option_of(key);
    const bool scalar = value.is_string() || value.is_number();
    if (spec == nullptr || !scalar) {
      if (!value.is_null()) profile.ignored.push_back("defaults." + key);
      continue;
    }
    const std::string where = profile.file.string() + ": defaults." + key;
    for (const auto& earlier : profile.defaults)
      if (earlier.option == spec->name)
        defects.push_back({where, "names " + spec->name + " again", "must stand once"});
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    profile.defaults.push_back({spec->name, text, where});
  }
}

}  // namespace

void read_repro_profile(const Json& root, Profile& profile, std::vector<Diagnostic>& defects) {
  profile.requirements.backend = "cuda";
  profile.task.reward = "deepscaler";
  for (const auto& [key, value] : root.items()) {
    if (key == "name" && value.is_string()) {
      profile.name = value.get<std::string>();
    } else if (key == "paths" && value.is_object()) {
      read_paths(value, profile, defects);
    } else if (key == "requirements" && value.is_object()) {
      read_requirements(value, profile, defects);
    } else if (key == "defaults" && value.is_object()) {
      read_defaults(value, profile, defects);
    } else if (key != "schema_version") {
      profile.ignored.push_back(key);
    }
  }
}

}  // namespace rlk
