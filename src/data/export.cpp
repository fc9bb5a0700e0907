#include "rlk/data/export.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/base/sha256.h"
#include "rlk/base/signals.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

// What a model folder has besides weights.
constexpr const char* kCompanions[] = {
    "config.json",        "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "added_tokens.json",  "special_tokens_map.json", "vocab.json",     "merges.txt",
    "chat_template.jinja"};

// A folder that is removed with all it holds unless it is committed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& target)
      : target_(target), path_(target.string() + ".tmp." + std::to_string(getpid())) {
    std::error_code code;
    if (!fs::create_directory(path_, code))
      throw Error("create " + path_.string() + ": " + (code ? code.message() : "exists already"));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  void commit() {
    sync(path_);
    // Fails when the target has come to exist meanwhile, unless that is an empty folder.
    if (std::rename(path_.c_str(), target_.c_str()) != 0)
      throw system_error("rename to " + target_.string());
    committed_ = true;
    sync(target_.has_parent_path() ? target_.parent_path() : ".");
  }

 private:
  static void sync(const fs::path& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) throw system_error("open " + folder.string());
    const int rc = ::fsync(fd);
    ::close(fd);
    if (rc != 0) throw system_error("fsync " + folder.string());
  }
  fs::path target_, path_;
  bool committed_ = false;
};

// config.json with the dtype of the weights written here.
std::string exported_config(const std::string& text, const std::string& file) {
  Json json = parse_json(text, file);
  const Json before = json;
  for (const char* key : {"torch_dtype", "dtype"})
    if (json.contains(key)) json[key] = "bfloat16";
  if (!json.contains("dtype")) json["torch_dtype"] = "bfloat16";
  return json == before ? text : json.dump(2) + "\n";
}

CompanionFiles companions(const ExportOptions& options) {
  CompanionFiles files = options.files;
  for (const char* name : kCompanions) {
    const fs::path source = options.source_dir / name;
    if (!options.source_dir.empty() && !files.contains(name) && is_there(source))
      files.emplace(name, read_file(source));
  }
  const auto config = files.find("config.json");
  if (config == files.end())
    throw InputError(options.source_dir.string(), "has no config.json", "must be a model folder");
  config->second = exported_config(config->second, (options.source_dir / "config.json").string());
  return files;
}

struct Shard {
  std::string name;
  std::vector<CheckpointTensor> tensors;
};

uint64_t bytes_of(const CheckpointTensor& t) {
  return static_cast<uint64_t>(t.elements()) * sizeof(bf16);
}

// Tensors in order, a new shard whenever the next one would exceed the limit.
std::vector<Shard> cut(const std::vector<CheckpointTensor>& tensors, uint64_t max_bytes) {
  std::vector<Shard> shards;
  uint64_t bytes = 0;
  for (const CheckpointTensor& t : tensors) {
    if (shards.empty() || bytes + bytes_of(t) > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().tensors.push_back(t);
    bytes += bytes_of(t);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].name = shards.size() == 1 ? "model.safetensors" : name;
  }
  return shards;
}

void write_shard(const fs::path& folder, const Shard& shard, const TensorProvider& provider,
                 const HeldSignals& held) {
  std::vector<TensorInfo> infos;
  std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};
  for (const CheckpointTensor& t : shard.tensors) {
    infos.push_back({t.name, DType::bf16, t.shape(), 0, 0});
    metadata.emplace_back(checksum_key(t.name), std::string(64, '0'));
  }
  SafetensorsWriter writer(folder / shard.name, std::move(infos), std::move(metadata));
  for (const CheckpointTensor& t : shard.tensors) {
    held.check();
    const std::span<const bf16> data = provider(t);
    RLK_CHECK(data.size_bytes() == bytes_of(t), t.name, data.size_bytes(), bytes_of(t));
    writer.append(data.data(), data.size_bytes());
    writer.set_metadata(checksum_key(t.name), hex(sha256(data.data(), data.size_bytes())));
  }
  writer.commit();
}

std::string index_text(const std::vector<Shard>& shards) {
  uint64_t total = 0;
  Json weight_map = Json::object();
  for (const Shard& shard : shards) {
    for (const CheckpointTensor& t : shard.tensors) {
      total += bytes_of(t);
      weight_map[t.name] = shard.name;
    }
  }
  return Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}.dump(
             2) +
         "\n";
}

}  // namespace

void check_new_path(const fs::path& out) {
  if (is_there(out)) throw InputError(out.string(), "exists already", "name a new one");
  const fs::path parent = fs::absolute(out).parent_path();
  if (!fs::is_directory(parent))
    throw InputError(parent.string(), "no such folder",
                     "must be there, to hold " + out.filename().string());
}

void export_checkpoint(const ModelConfig& config, const ExportOptions& options,
                       const TensorProvider& tensor) {
  const fs::path& out = options.out_dir;
  const fs::path target = out.has_filename() ? out : out.parent_path();  // "name/" is "name"
  check_new_path(target);
  const CompanionFiles files = companions(options);
  const HeldSignals held;  // outlives the folder: an interruption removes it
  TemporaryFolder folder(target);
  for (const auto& [name, contents] : files) write_file_atomic(folder.path() / name, contents);
  const std::vector<Shard> shards = cut(checkpoint_tensors(config), options.max_shard_bytes);
  for (const Shard& shard : shards) write_shard(folder.path(), shard, tensor, held);
  if (shards.size() > 1)
    write_file_atomic(folder.path() / "model.safetensors.index.json", index_text(shards));
  folder.commit();
}

}  // namespace rlk
