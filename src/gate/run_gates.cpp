// Gates about the run itself: steps, ranks, kernels, graphs, rollout_weights, manifest.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "gate_functions.h"
#include "rlk/base/file.h"
#include "rlk/base/sha256.h"
#include "rlk/run/json_fields.h"
#include "rlk/run/manifest_digest.h"

namespace rlk {
namespace {

// ---- kernels ----------------------------------------------------------------------------------

// Ops that a step cannot do without, by module. On every rank, since each runs the forward:
constexpr const char* kForwardOps[] = {
    "attention.rms_norm",  "attention.gemm", "attention.qk_norm_rope",
    "attention.attention", "ffn.embedding",  "ffn.gemm",
    "ffn.swiglu"};
// and on some rank, since a small batch may leave others without a response token:
constexpr const char* kOtherOps[] = {"logp.rms_norm",
                                     "logp.gemm",
                                     "logp.logprob_stats",
                                     "logp.logprob_merge",
                                     "logp.sample",
                                     "logp.logprob_bwd",
                                     "logp.gemm_dgrad",
                                     "logp.gemm_wgrad",
                                     "attention.gemm_dgrad",
                                     "attention.gemm_wgrad",
                                     "attention.attention_delta",
                                     "attention.attention_bwd_dq",
                                     "attention.attention_bwd_dkv",
                                     "attention.rms_norm_bwd",
                                     "attention.rms_norm_wgrad",
                                     "attention.qk_norm_rope_bwd",
                                     "ffn.gemm_dgrad",
                                     "ffn.gemm_wgrad",
                                     "ffn.swiglu_bwd",
                                     "ffn.embedding_bwd",
                                     "ffn.adamw"};
// What native mode exists for: served by no strict kernel in a native module.
constexpr const char* kNativeOps[] = {"attention.gemm", "ffn.gemm", "ffn.gemm_swiglu", "logp.gemm"};

// Does the mode make the op's module strict? What belongs to no module has strict kernels alone.
bool must_be_strict(std::string_view op, const Facts& facts) {
  if (op.starts_with("attention.")) return facts.strict_attention;
  if (op.starts_with("ffn.")) return facts.strict_ffn;
  if (op.starts_with("logp.")) return facts.strict_logp;
  return true;
}

uint64_t calls_of(const RankRecord& rank, const char* op) {
  const auto found = rank.ops.find(op);
  return found == rank.ops.end() ? 0 : found->second.calls;
}

struct KernelCounts {
  std::set<std::string> strict_ops;
  uint64_t calls = 0, fallbacks = 0;
};

// What one rank says that it ran.
void check_readback(const RankRecord& rank, const RankRecord& first, const Facts& facts,
                    KernelCounts* counts, GateResult* result) {
  const std::string path = RunReader::rank_record_path(rank.rank);
  for (const auto& [name, op] : rank.ops) {
    const std::string where = name + " on rank " + std::to_string(rank.rank);
    counts->fallbacks += op.fallbacks;
    if (op.fallbacks > 0)
      fail(result, where + " fell back " + std::to_string(op.fallbacks) + " times", path);
    if (op.calls == 0 || !must_be_strict(name, facts)) continue;
    if (!op.strict)
      fail(result, where + " ran " + op.implementation + ", which is not strict", path);
    const auto on_first = first.ops.find(name);
    if (on_first != first.ops.end() && on_first->second.implementation != op.implementation) {
      fail(result,
           where + " ran " + op.implementation + ", rank 0 " + on_first->second.implementation,
           path);
    }
    counts->strict_ops.insert(name);
    counts->calls += op.calls;
  }
  for (const char* name : kNativeOps) {
    const auto op = rank.ops.find(name);
    if (op != rank.ops.end() && op->second.strict && !must_be_strict(name, facts))
      fail(result,
           std::string(name) + " on rank " + std::to_string(rank.rank) + " ran " +
               op->second.implementation + ", the mode wants a native kernel",
           path);
  }
}

// ---- rollout weights ----------------------------------------------------------------------------

// First tensor that only one of two versions has; "" when both have the same.
std::string other_tensor(const VersionFingerprints& a, const VersionFingerprints& b) {
  for (const auto& [name, t] : a.tensors)
    if (!b.tensors.contains(name)) return name;
  for (const auto& [name, t] : b.tensors)
    if (!a.tensors.contains(name)) return name;
  return "";
}

// First tensor of an engine that is not the version's; "" when none is.
std::string stale_tensor(const std::map<std::string, Digest>& engine,
                         const VersionFingerprints& version) {
  for (const auto& [name, t] : version.tensors) {
    const auto found = engine.find(name);
    if (found == engine.end()) return name + " is missing";
    if (found->second != t.weight)
      return name + " is " + hex(found->second) + ", version " + std::to_string(version.version) +
             " has " + hex(t.weight);
  }
  for (const auto& [name, digest] : engine)
    if (!version.tensors.contains(name)) return name + " belongs to no version";
  return "";
}

// ---- manifest -----------------------------------------------------------------------------------

constexpr const char* kManifestKeys[] = {
    "schema",   "run_id",      "command", "profile",   "status",      "message",
    "started",  "ended",       "backend", "mode",      "modules",     "steps",
    "topology", "sampling",    "seeds",   "algorithm", "execution",   "model",
    "data",     "source",      "build",   "hardware",  "environment", "commands",
    "memory",   "plan_sha256", "exits",   "files",     "digest"};

struct Nested {
  const char* section;
  std::initializer_list<const char*> keys;
};
// Of sections that are not plan.json's.
const Nested kNestedKeys[] = {
    {"model", {"root", "synthetic", "ref_load", "config", "files"}},
    {"data", {"path", "sha256", "reward"}},
    {"source", {"revision", "dirty"}},
    {"build", {"compiler", "type", "flags", "cuda"}},
    {"hardware", {"host", "kernel", "cpu", "cores", "memory_bytes", "gpus"}}};

bool is_sha256(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string missing_key(const Json& m) {
  for (const char* key : kManifestKeys)
    if (!m.contains(key)) return key;
  for (const Nested& nested : kNestedKeys)
    for (const char* key : nested.keys)
      if (!m[nested.section].is_object() || !m[nested.section].contains(key))
        return std::string(nested.section) + "." + key;
  return "";
}

// What was done must be what was planned.
void check_plan(const Run& run, const Json& m, GateResult* result) {
  const std::string text = read_file(run.reader.dir() / "plan.json");
  if (m["plan_sha256"] != hex(sha256(text.data(), text.size())))
    fail(result, "plan.json is not what the manifest recorded", "plan.json");
  const Json plan = parse_json(text, "plan.json");
  const auto repeats = [&](const char* key) {
    if (json_field<Json>(plan, key, "plan.json") != m[key])
      fail(result, std::string(key) + " is not what plan.json says");
  };
  for (const char* key : kPlannedIdentity) repeats(key);
  for (const char* key : kPlannedSections) repeats(key);
}

void check_inputs(const Json& m, int ranks, GateResult* result) {
  const Json& files = m["model"]["files"];
  const bool synthetic = m["model"]["synthetic"].is_object();
  if (!files.is_object() || files.empty() != synthetic)
    fail(result,
         synthetic ? "model.files of a synthetic model is not empty" : "model.files is empty");
  for (const auto& [name, digest] : files.items())
    if (!is_sha256(digest)) fail(result, "model.files." + name + " is no SHA-256");
  if (synthetic ? !m["data"]["sha256"].is_null() : !is_sha256(m["data"]["sha256"]))
    fail(result, synthetic ? "data.sha256 of synthetic prompts" : "data.sha256 is no SHA-256");
  if (!m["commands"].is_array() || m["commands"].size() != static_cast<size_t>(ranks))
    fail(result, "commands do not list every rank");
}

// The recorded hashes against the files, and the files against the recorded ones.
void check_files(const RunReader& reader, const Json& recorded, GateResult* result) {
  if (!recorded.is_object()) return fail(result, "files is no object");
  std::set<std::string> listed;
  for (const auto& [path, digest] : recorded.items()) listed.insert(path);
  const std::vector<std::string> present = reader.evidence_files();
  for (const std::string& path : present) {
    if (listed.erase(path) == 0)
      fail(result, path + " is not in the manifest", path);
    else if (recorded[path] != hex(sha256_file(reader.dir() / path)))
      fail(result, path + " is not what the manifest recorded", path);
  }
  for (const std::string& path : listed) fail(result, path + " is missing", path);
  result->figures = {{"files", present.size()}};
}

}  // namespace

void gate_steps(const Run& run, GateResult* result) {
  const std::vector<Json> metrics = run.reader.metrics();
  const int64_t steps = run.facts.steps;
  for (size_t i = 0; i < metrics.size(); ++i) {
    const auto step = json_field<int64_t>(metrics[i], "step", "metrics.jsonl");
    const auto version = json_field<int64_t>(metrics[i], "weight_version", "metrics.jsonl");
    if (step != static_cast<int64_t>(i) || version != step)
      fail(result, "line " + std::to_string(i + 1) + " is step " + std::to_string(step) +
                       " with weight version " + std::to_string(version));
  }
  if (static_cast<int64_t>(metrics.size()) != steps)
    fail(result, std::to_string(metrics.size()) + " of " + std::to_string(steps) +
                     " steps in metrics.jsonl");

  std::set<std::string> expected = {RunReader::version_path(static_cast<uint64_t>(steps))};
  for (int64_t s = 0; s < steps; ++s)
    expected.insert({RunReader::sidecar_path(s), RunReader::texts_path(s),
                     RunReader::version_path(static_cast<uint64_t>(s)),
                     RunReader::rollout_weights_path(s)});
  for (const std::string& path : run.reader.evidence_files()) {
    if (path == "metrics.jsonl" || path.starts_with("evidence/")) continue;
    if (expected.erase(path) == 0) fail(result, path + " belongs to no planned step", path);
  }
  for (const std::string& path : expected) fail(result, path + " is missing", path);
  result->figures = {{"steps", metrics.size()}, {"planned", steps}};
  if (result->verdict == Verdict::pass)
    result->detail =
        std::to_string(steps) + " steps, weight versions 0 to " + std::to_string(steps);
}

void gate_ranks(const Run& run, GateResult* result) {
  const std::filesystem::path failure = run.reader.dir() / "failure.json";
  if (std::filesystem::exists(failure)) {
    const Json f = parse_json(read_file(failure), "failure.json");
    fail(result,
         "rank " + std::to_string(json_field<int>(f, "rank", "failure.json")) + " failed in " +
             json_field<std::string>(f, "phase", "failure.json") + ": " +
             json_field<std::string>(f, "message", "failure.json"),
         "failure.json");
  }
  if (run.facts.status != "finished")
    fail(result,
         "the run is " + run.facts.status +
             (run.facts.message.empty() ? "" : ": " + run.facts.message),
         "manifest.json");
  std::set<int> exited;
  for (const Json& e : json_field<Json>(run.reader.manifest(), "exits", "manifest.json")) {
    const int rank = json_field<int>(e, "rank", "manifest.json"),
              code = json_field<int>(e, "code", "manifest.json"),
              signal = json_field<int>(e, "signal", "manifest.json");
    exited.insert(rank);
    if (signal != 0)
      fail(result,
           "rank " + std::to_string(rank) + " was killed by signal " + std::to_string(signal),
           "manifest.json");
    if (code != 0)
      fail(result, "rank " + std::to_string(rank) + " exited with " + std::to_string(code),
           "manifest.json");
  }
  std::set<std::string> expected;
  for (int rank = 0; rank < run.facts.ranks; ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    expected.insert(RunReader::rank_record_path(rank));
    if (!exited.contains(rank)) fail(result, name + " has no recorded exit", "manifest.json");
    const RankRecord record = run.reader.rank_record(rank);
    if (record.steps != run.facts.steps)
      fail(result,
           name + " finished " + std::to_string(record.steps) + " of " +
               std::to_string(run.facts.steps) + " steps",
           RunReader::rank_record_path(rank));
  }
  for (const std::string& path : run.reader.evidence_files())
    if (path.starts_with("evidence/") && !expected.contains(path))
      fail(result, path + " belongs to no rank", path);
  result->figures = {{"ranks", run.facts.ranks}};
  if (result->verdict == Verdict::pass)
    result->detail = std::to_string(run.facts.ranks) + " ranks ended by themselves, exit code 0";
}

void gate_kernels(const Run& run, GateResult* result) {
  std::vector<RankRecord> ranks;
  for (int rank = 0; rank < run.facts.ranks; ++rank) ranks.push_back(run.reader.rank_record(rank));
  KernelCounts counts;
  for (const RankRecord& rank : ranks)
    check_readback(rank, ranks.front(), run.facts, &counts, result);
  for (const char* op : kForwardOps) {
    for (const RankRecord& rank : ranks) {
      if (calls_of(rank, op) == 0)
        fail(result, std::string(op) + " on rank " + std::to_string(rank.rank) + " never ran",
             RunReader::rank_record_path(rank.rank));
    }
  }
  for (const char* op : kOtherOps) {
    const bool ran = std::any_of(ranks.begin(), ranks.end(),
                                 [&](const RankRecord& rank) { return calls_of(rank, op) > 0; });
    if (!ran) fail(result, std::string(op) + " never ran on any rank");
  }
  result->figures = {{"strict_ops", counts.strict_ops.size()},
                     {"calls", counts.calls},
                     {"fallbacks", counts.fallbacks}};
  if (result->verdict == Verdict::pass)
    result->detail = std::to_string(counts.strict_ops.size()) + " strict ops, " +
                     std::to_string(counts.calls) + " calls, no fallback";
}

void gate_graphs(const Run& run, GateResult* result) {
  if (!run.facts.cuda) {
    result->verdict = Verdict::not_applicable;
    result->detail = "the CPU backend has no graphs";
    return;
  }
  if (run.facts.traced) {
    result->verdict = Verdict::not_applicable;
    result->detail = "op traces stop after every op, so no graph is captured";
    return;
  }
  std::map<int64_t, uint64_t> replays;
  uint64_t all = 0;
  for (int rank = 0; rank < run.facts.ranks; ++rank) {
    const std::string name = "rank " + std::to_string(rank),
                      path = RunReader::rank_record_path(rank);
    const std::optional<GraphReadback> graphs = run.reader.rank_record(rank).graphs;
    if (!graphs || graphs->planned.empty()) {
      fail(result, name + " planned no graph", path);
      continue;
    }
    for (const int64_t size : graphs->planned)
      if (std::find(graphs->captured.begin(), graphs->captured.end(), size) ==
          graphs->captured.end())
        fail(result, name + " captured no graph for batch size " + std::to_string(size), path);
    if (graphs->replays.empty()) fail(result, name + " replayed no graph", path);
    if (graphs->eager_decodes > 0)
      fail(result,
           name + " decoded " + std::to_string(graphs->eager_decodes) + " steps without a graph",
           path);
    for (const auto& [size, count] : graphs->replays) {
      if (std::find(graphs->captured.begin(), graphs->captured.end(), size) ==
          graphs->captured.end())
        fail(result, name + " replayed batch size " + std::to_string(size) + ", never captured",
             path);
      replays[size] += count;
      all += count;
    }
  }
  std::string sizes;
  for (const auto& [size, count] : replays)
    sizes +=
        (sizes.empty() ? "" : ", ") + std::to_string(count) + " of size " + std::to_string(size);
  result->figures = {{"replays", all}};
  if (result->verdict == Verdict::pass)
    result->detail =
        "every planned size captured, no decode step without a graph; replays: " + sizes;
}

void gate_rollout_weights(const Run& run, GateResult* result) {
  int64_t compared = 0;
  VersionFingerprints version = run.reader.version(0);
  for (int64_t step = 0; step < run.facts.steps; ++step) {
    const std::string path = RunReader::rollout_weights_path(step);
    const std::string prefix = "step " + std::to_string(step) + ": ";
    const RolloutFingerprints rollout = run.reader.rollout_weights(step);
    if (rollout.version != version.version)
      fail(result, prefix + "engines claim version " + std::to_string(rollout.version), path);
    if (rollout.engines.size() != static_cast<size_t>(run.facts.engines))
      fail(result,
           prefix + std::to_string(rollout.engines.size()) + " of " +
               std::to_string(run.facts.engines) + " engines reported",
           path);
    for (size_t e = 0; e < rollout.engines.size(); ++e) {
      const std::string stale = stale_tensor(rollout.engines[e], version);
      if (!stale.empty()) fail(result, prefix + "engine " + std::to_string(e) + ": " + stale, path);
      compared += static_cast<int64_t>(rollout.engines[e].size());
    }
    VersionFingerprints next = run.reader.version(version.version + 1);
    const std::string other = other_tensor(version, next);
    if (!other.empty())
      fail(result, prefix + "versions before and after differ in having " + other,
           RunReader::version_path(next.version));
    version = std::move(next);
  }
  result->figures = {{"fingerprints", compared}};
  if (result->verdict == Verdict::pass)
    result->detail =
        std::to_string(compared) + " fingerprints of rollout weights equal the trained version's";
}

void gate_manifest(const Run& run, GateResult* result) {
  const Json manifest = run.reader.manifest();
  const std::string missing = missing_key(manifest);
  if (!missing.empty()) return fail(result, "key " + missing + " is missing");
  if (manifest["schema"] != "rlk.manifest.v1")
    fail(result, "schema is " + manifest["schema"].dump());
  if (manifest["digest"] != manifest_digest(manifest))
    fail(result, "digest does not match: the manifest was edited");
  check_plan(run, manifest, result);
  check_inputs(manifest, run.facts.ranks, result);
  check_files(run.reader, manifest["files"], result);
  if (result->verdict == Verdict::pass)
    result->detail =
        "complete; " + result->figures["files"].dump() + " files match their recorded hashes";
}

}  // namespace rlk
