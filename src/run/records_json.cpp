#include "records_json.h"

#include <charconv>
#include <string_view>

#include "rlk/base/error.h"
#include "rlk/run/json_fields.h"

namespace rlk {
namespace {

constexpr const char* kWeightsSchema = "rlk.weights.v1";
constexpr const char* kRolloutSchema = "rlk.rollout-weights.v1";
constexpr const char* kRankSchema = "rlk.rank.v1";

void expect_schema(const Json& object, const char* schema, const std::string& where) {
  const auto found = json_field<std::string>(object, "schema", where);
  if (found != schema) throw InputError(where, "schema is \"" + found + "\"", schema);
}

Digest digest_from_hex(const std::string& text, const std::string& where) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Digest digest{};
  if (text.size() != 2 * digest.size() || text.find_first_not_of(kDigits) != std::string::npos)
    throw InputError(where, "\"" + text.substr(0, 80) + "\" is no SHA-256");
  for (size_t i = 0; i < digest.size(); ++i)
    digest[i] =
        static_cast<uint8_t>(kDigits.find(text[2 * i]) << 4 | kDigits.find(text[2 * i + 1]));
  return digest;
}

Digest digest_field(const Json& object, const char* key, const std::string& where) {
  return digest_from_hex(json_field<std::string>(object, key, where), where + " " + key);
}

std::vector<int64_t> integers(const Json& object, const char* key, const std::string& where) {
  const Json list = json_field<Json>(object, key, where);
  if (!list.is_array()) throw InputError(where, std::string("\"") + key + "\" is no list");
  std::vector<int64_t> values;
  for (const Json& item : list) {
    if (!item.is_number_integer())
      throw InputError(where, std::string("\"") + key + "\" has " + item.dump());
    values.push_back(item.get<int64_t>());
  }
  return values;
}

Json object_field(const Json& object, const char* key, const std::string& where) {
  Json value = json_field<Json>(object, key, where);
  if (!value.is_object()) throw InputError(where, std::string("\"") + key + "\" is no object");
  return value;
}

int64_t batch_size(const std::string& text, const std::string& where) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1)
    throw InputError(where, "\"" + text.substr(0, 80) + "\" is no batch size");
  return size;
}

}  // namespace

Json to_json(const VersionFingerprints& v) {
  Json tensors = Json::object();
  auto& members = tensors.get_ref<Json::object_t&>();  // names are unique: a map gave them
  for (const auto& [name, t] : v.tensors) {
    Json entry = {{"weight", hex(t.weight)}};
    if (t.gradient) entry["gradient"] = hex(*t.gradient);
    if (t.master) entry["master"] = hex(*t.master);
    if (t.exp_avg) entry["exp_avg"] = hex(*t.exp_avg);
    if (t.exp_avg_sq) entry["exp_avg_sq"] = hex(*t.exp_avg_sq);
    members.emplace_back(name, std::move(entry));
  }
  return {{"schema", kWeightsSchema}, {"version", v.version}, {"tensors", std::move(tensors)}};
}

VersionFingerprints version_from_json(const Json& json, const std::string& where) {
  expect_schema(json, kWeightsSchema, where);
  VersionFingerprints v;
  v.version = json_field<uint64_t>(json, "version", where);
  const Json tensors = object_field(json, "tensors", where);
  for (const auto& [name, entry] : tensors.items()) {
    const std::string tensor = where + ": " + name;
    TensorFingerprints t;
    t.weight = digest_field(entry, "weight", tensor);
    if (v.version > 0) {
      t.gradient = digest_field(entry, "gradient", tensor);
      t.master = digest_field(entry, "master", tensor);
      t.exp_avg = digest_field(entry, "exp_avg", tensor);
      t.exp_avg_sq = digest_field(entry, "exp_avg_sq", tensor);
    }
    v.tensors.emplace(name, t);
  }
  if (v.tensors.empty()) throw InputError(where, "names no tensor");
  return v;
}

Json to_json(const RolloutFingerprints& r) {
  Json engines = Json::array();
  for (size_t i = 0; i < r.engines.size(); ++i) {
    Json tensors = Json::object();
    for (const auto& [name, digest] : r.engines[i])
      tensors.get_ref<Json::object_t&>().emplace_back(name, hex(digest));
    engines.push_back({{"engine", i}, {"tensors", std::move(tensors)}});
  }
  return {{"schema", kRolloutSchema},
          {"step", r.step},
          {"version", r.version},
          {"engines", std::move(engines)}};
}

RolloutFingerprints rollout_from_json(const Json& json, const std::string& where) {
  expect_schema(json, kRolloutSchema, where);
  RolloutFingerprints r;
  r.step = json_field<int64_t>(json, "step", where);
  r.version = json_field<uint64_t>(json, "version", where);
  const Json engines = json_field<Json>(json, "engines", where);
  if (!engines.is_array()) throw InputError(where, "\"engines\" is no list");
  for (size_t i = 0; i < engines.size(); ++i) {
    if (json_field<uint64_t>(engines[i], "engine", where) != i)
      throw InputError(where, "engines are not in order");
    const Json listed = object_field(engines[i], "tensors", where);
    std::map<std::string, Digest> tensors;
    for (const auto& [name, digest] : listed.items()) {
      if (!digest.is_string()) throw InputError(where + ": " + name, "is no SHA-256");
      tensors.emplace(name, digest_from_hex(digest.get<std::string>(), where + ": " + name));
    }
    r.engines.push_back(std::move(tensors));
  }
  return r;
}

Json to_json(const RankRecord& r) {
  Json ops = Json::object();
  for (const auto& [name, op] : r.ops) {
    ops[name] = {{"implementation", op.implementation},
                 {"strict", op.strict},
                 {"calls", op.calls},
                 {"fallbacks", op.fallbacks}};
  }
  Json graphs;
  if (r.graphs) {
    Json replays = Json::object();
    for (const auto& [size, count] : r.graphs->replays) replays[std::to_string(size)] = count;
    graphs = {{"planned", r.graphs->planned},
              {"captured", r.graphs->captured},
              {"replays", std::move(replays)},
              {"eager_decodes", r.graphs->eager_decodes}};
  }
  Json memory;
  if (r.memory) memory = {{"planned", r.memory->planned}, {"used", r.memory->used}};
  return {{"schema", kRankSchema},      {"rank", r.rank},        {"pid", r.pid},
          {"steps", r.steps},           {"ops", std::move(ops)}, {"graphs", std::move(graphs)},
          {"memory", std::move(memory)}};
}

RankRecord rank_from_json(const Json& json, const std::string& where) {
  expect_schema(json, kRankSchema, where);
  RankRecord r;
  r.rank = json_field<int>(json, "rank", where);
  r.pid = json_field<int64_t>(json, "pid", where);
  r.steps = json_field<int64_t>(json, "steps", where);
  const Json ops = object_field(json, "ops", where);
  for (const auto& [name, entry] : ops.items()) {
    const std::string op = where + ": op " + name;
    r.ops.emplace(name, OpReadback{json_field<std::string>(entry, "implementation", op),
                                   json_field<bool>(entry, "strict", op),
                                   json_field<uint64_t>(entry, "calls", op),
                                   json_field<uint64_t>(entry, "fallbacks", op)});
  }
  const Json graphs = json_field<Json>(json, "graphs", where);
  if (!graphs.is_null()) {
    const std::string place = where + ": graphs";
    r.graphs = GraphReadback{integers(graphs, "planned", place),
                             integers(graphs, "captured", place),
                             {},
                             json_field<uint64_t>(graphs, "eager_decodes", place)};
    const Json replays = object_field(graphs, "replays", place);
    for (const auto& [size, count] : replays.items())
      r.graphs->replays[batch_size(size, place)] = json_field<uint64_t>(replays, size, place);
  }
  const Json memory = json_field<Json>(json, "memory", where);
  if (!memory.is_null()) {
    r.memory = MemoryReadback{json_field<uint64_t>(memory, "planned", where + ": memory"),
                              json_field<uint64_t>(memory, "used", where + ": memory")};
  }
  return r;
}

}  // namespace rlk
