#include "manifest.h"

#include "rlk/base/sha256.h"
#include "rlk/run/inventory.h"
#include "rlk/run/manifest_digest.h"

namespace rlk {

std::string manifest_digest(Json manifest) {
  manifest.erase("digest");
  const std::string text = manifest.dump();
  return hex(sha256(text.data(), text.size()));
}

Json make_manifest(const std::string& plan_json, const ManifestInputs& inputs) {
  const Json plan = parse_json(plan_json, "plan.json");
  Json m;
  m["schema"] = "rlk.manifest.v1";
  for (const char* key : kPlannedIdentity) m[key] = plan.at(key);
  m["status"] = run_status_name(RunStatus::running);
  m["message"] = "";
  m["started"] = utc_now();
  m["ended"] = nullptr;
  for (const char* key : kPlannedSections) m[key] = plan.at(key);
  m["model"] = plan.at("model");
  m["model"]["files"] = Json::object();
  for (const auto& [name, digest] : inputs.model_files) m["model"]["files"][name] = digest;
  m["data"] = plan.at("data");
  m["data"]["sha256"] = inputs.data_sha256.empty() ? Json() : Json(inputs.data_sha256);
  m["source"] = source_inventory();
  m["build"] = build_inventory();
  m["hardware"] = host_inventory();
  m["hardware"]["gpus"] = inputs.gpus;
  m["environment"] = environment_inventory();
  m["commands"] = inputs.commands;
  m["plan_sha256"] = hex(sha256(plan_json.data(), plan_json.size()));
  m["exits"] = Json::array();
  m["files"] = Json::object();
  m["digest"] = manifest_digest(m);
  return m;
}

}  // namespace rlk
