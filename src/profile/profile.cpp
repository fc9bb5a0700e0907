#include "rlk/profile/profile.h"

#include <algorithm>

#include "repro_profile.h"
#include "rlk/base/file.h"
#include "rlk/base/json_reader.h"
#include "rlk/base/text.h"
#include "rlk/profile/option_table.h"

namespace rlk {
namespace {

using Key = JsonReader::Key;

constexpr char kSchema[] = "rlk.profile.v1";
constexpr int kMaxRanks = 8;
constexpr int kMaxRanksPerGpu = 8;
constexpr double kMaxGpuMemoryGib = 1024;
constexpr int64_t kMaxPromptTokens = 1 << 24;

void read_requirements(JsonReader json, Profile::Requirements& r) {
  json.one_of("backend", {"auto", "cpu", "cuda"}, r.backend);
  int64_t ranks = r.ranks;
  if (json.integer("ranks", 1, kMaxRanks, ranks) && (ranks & (ranks - 1)) != 0)
    json.fail("ranks", std::to_string(ranks), "must be 1, 2, 4 or 8");
  r.ranks = static_cast<int>(ranks);
  json.strings("gpu_models", r.gpu_models, Key::optional);
  json.number("gpu_memory_gib", 0, kMaxGpuMemoryGib, r.gpu_memory_gib, Key::optional);
  json.refuse_unknown_keys();
}

void read_paths(JsonReader json, const std::filesystem::path& folder, Profile::Paths& p) {
  const auto path = [&](const char* key, std::optional<std::filesystem::path>& value) {
    std::string text;
    if (!json.string(key, text, Key::optional)) return;
    if (text.empty() || text.find('\0') != std::string::npos)
      json.fail(key, "\"" + printable(text) + "\"", "must be a path, or null");
    else
      value = (folder / text).lexically_normal();
  };
  path("workspace", p.workspace);
  path("model_root", p.model_root);
  path("ref_load", p.ref_load);
  path("prompt_data", p.prompt_data);
  path("output_root", p.output_root);
  json.refuse_unknown_keys();
}

void read_task(JsonReader json, const std::filesystem::path& folder, Profile::TaskSpec& t) {
  json.string("reward", t.reward);
  constexpr std::string_view kCommand = "command:";  // and a path, data/reward.h
  if (t.reward.size() > kCommand.size() && t.reward.starts_with(kCommand))
    t.reward = std::string(kCommand) +
               (folder / t.reward.substr(kCommand.size())).lexically_normal().string();
  json.string("prompt_key", t.prompt_key, Key::optional);
  json.string("label_key", t.label_key, Key::optional);
  json.boolean("chat_template", t.chat_template, Key::optional);
  json.boolean("thinking", t.thinking, Key::optional);
  if (!t.thinking && !t.chat_template)
    json.fail("thinking", "false", "the chat template closes the thinking part; it must be on");
  if (json.string("prompt_data_sha256", t.prompt_data_sha256, Key::optional)) {
    const std::string& digest = t.prompt_data_sha256;
    if (digest.size() != 64 || digest.find_first_not_of("0123456789abcdef") != std::string::npos)
      json.fail("prompt_data_sha256", "\"" + printable(digest) + "\"",
                "must be 64 lower-case hex digits, or null");
  }
  json.refuse_unknown_keys();
}

// `defaults` and `verify` hold options as JSON values; each becomes the text that the command line
// would take, so that one place checks all of them.
std::vector<ProfileValue> read_options(JsonReader json) {
  for (const OptionSpec& spec : option_table())
    if (spec.in_profile) json.find(spec.name, Key::optional);
  std::vector<ProfileValue> values;
  for (const auto& [key, value] : json.value().items()) {
    const OptionSpec* spec = find_option(key);
    if (spec == nullptr || !spec->in_profile || spec->name != key || value.is_null()) continue;
    if (value.is_string())
      values.push_back({key, value.get<std::string>(), json.where(key)});
    else if (value.is_number() || (value.is_boolean() && spec->value.empty()))
      values.push_back({key, value.dump(), json.where(key)});
    else
      json.fail(key, shown(value),
                spec->value.empty() ? "must be true or false" : "must be a number or a string");
  }
  json.refuse_unknown_keys();
  return values;
}

void read_launcher(JsonReader json) {
  std::string text;
  json.one_of("kind", {"local"}, text, Key::optional);
  json.string("ray_address", text, Key::optional);
  json.refuse_unknown_keys();
}

void read_model(JsonReader json, const std::filesystem::path& folder, Profile& profile) {
  std::string source = "path";
  json.one_of("source", {"path", "synthetic"}, source, Key::optional);
  const bool synthetic = source == "synthetic";
  json.string("shape", profile.shape, synthetic ? Key::required : Key::optional);
  if (profile.shape.ends_with(".json")) profile.shape = (folder / profile.shape).lexically_normal();
  if (synthetic) {
    SyntheticModel& s = profile.synthetic.emplace();
    s.shape = profile.shape;
    int64_t seed = 0;
    json.integer("seed", 0, INT64_MAX, seed, Key::optional);
    json.integer("prompt_tokens", 1, kMaxPromptTokens, s.prompt_tokens, Key::optional);
    s.seed = static_cast<uint64_t>(seed);
  }
  json.refuse_unknown_keys();
}

}  // namespace

Profile parse_profile(std::string_view text, const std::filesystem::path& file) {
  const Json root = parse_json(text, file.string());
  std::vector<Diagnostic> defects;
  JsonReader json(root, file.string(), "", defects);
  Profile profile;
  profile.file = std::filesystem::absolute(file).lexically_normal();

  if (root.is_object() && root.contains("schema_version") &&
      root["schema_version"] == kReproSchema) {
    read_repro_profile(root, profile, defects);
    if (!defects.empty()) throw InputError(std::move(defects));
    return profile;
  }
  std::string schema;
  json.one_of("schema_version", {kSchema}, schema);
  json.string("name", profile.name);
  read_requirements(json.object("requirements"), profile.requirements);
  read_model(json.object("model", Key::optional), profile.file.parent_path(), profile);
  read_paths(json.object("paths"), profile.file.parent_path(), profile.paths);
  read_task(json.object("task"), profile.file.parent_path(), profile.task);
  profile.defaults = read_options(json.object("defaults", Key::optional));
  profile.verify = read_options(json.object("verify", Key::optional));
  read_launcher(json.object("launcher", Key::optional));
  int64_t ranks_per_gpu = profile.ranks_per_gpu;
  json.integer("ranks_per_gpu", 1, kMaxRanksPerGpu, ranks_per_gpu, Key::optional);
  profile.ranks_per_gpu = static_cast<int>(ranks_per_gpu);
  json.refuse_unknown_keys();
  if (!defects.empty()) throw InputError(std::move(defects));
  return profile;
}

Profile read_profile(const std::filesystem::path& file) {
  return parse_profile(read_file(file), file);
}

}  // namespace rlk
