#include "rlk/data/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/base/sha256.h"
#include "rlk/base/text.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr unsigned kMaxThreads = 16;  // of verify(): more than any disk feeds

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// IEEE half -> float, exact.
float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = h >> 10 & 0x1F, fraction = h & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 0x7F800000u : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | wide | fraction << 13);
}

// `count` elements of the file's type -> bf16.
void convert(DType dtype, const std::byte* source, int64_t count, bf16* out) {
  if (dtype == DType::bf16) {
    std::memcpy(out, source, static_cast<size_t>(count) * sizeof(bf16));
  } else if (dtype == DType::f16) {
    const auto* p = reinterpret_cast<const uint16_t*>(source);
    for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(half_to_float(p[i]));
  } else {
    const auto* p = reinterpret_cast<const float*>(source);
    for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(p[i]);
  }
}

// Asks the kernel to read ahead: a rank's ranges are large and read once.
void will_need(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t start = reinterpret_cast<uintptr_t>(begin) & ~(page - 1);
  const size_t length = reinterpret_cast<uintptr_t>(begin) + bytes - start;
  (void)madvise(reinterpret_cast<void*>(start), length, MADV_WILLNEED);  // advice only
}

bool plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

struct Place {
  const SafetensorsFile* file;
  const TensorInfo* info;
};

std::string where(const Place& place) {
  return place.file->path().string() + ": tensor " + place.info->name;
}

}  // namespace

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& c) {
  std::vector<CheckpointTensor> all;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    all.push_back({name, rows, columns, false});
  };
  const auto vector = [&](const std::string& name, int64_t n) {
    all.push_back({name, n, 1, true});
  };
  matrix(kEmbedding, c.vocab, c.D);
  for (int64_t layer = 0; layer < c.L; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    vector(p + "input_layernorm.weight", c.D);
    matrix(p + "self_attn.q_proj.weight", c.H * c.Dh, c.D);
    matrix(p + "self_attn.k_proj.weight", c.KH * c.Dh, c.D);
    matrix(p + "self_attn.v_proj.weight", c.KH * c.Dh, c.D);
    matrix(p + "self_attn.o_proj.weight", c.D, c.H * c.Dh);
    vector(p + "self_attn.q_norm.weight", c.Dh);
    vector(p + "self_attn.k_norm.weight", c.Dh);
    vector(p + "post_attention_layernorm.weight", c.D);
    matrix(p + "mlp.gate_proj.weight", c.F, c.D);
    matrix(p + "mlp.up_proj.weight", c.F, c.D);
    matrix(p + "mlp.down_proj.weight", c.D, c.F);
  }
  vector("model.norm.weight", c.D);
  if (!c.tied) matrix(kHead, c.vocab, c.D);
  return all;
}

std::string checksum_key(const std::string& tensor) {
  return "sha256 " + tensor;
}

struct Checkpoint::Impl {
  fs::path dir;
  std::vector<CheckpointTensor> expected;
  std::vector<fs::path> paths;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::unordered_map<std::string, Place> places;
  std::vector<Diagnostic> defects;
  uint64_t bytes = 0;

  // Tensor -> shard file name of the index; empty without one.
  std::map<std::string, std::string> read_index();
  void open_files(const std::map<std::string, std::string>& weight_map);
  void take_inventory(const std::map<std::string, std::string>& weight_map);
  void check_expected(const ModelConfig& config);
  void check_tied_head(const ModelConfig& config);
};

std::map<std::string, std::string> Checkpoint::Impl::read_index() {
  const fs::path path = dir / kIndexFile;
  const std::string file = path.string();
  const bool single = is_there(dir / kSingleFile), sharded = is_there(path);
  if (single && sharded) {
    throw InputError(dir.string(), std::string("has both ") + kSingleFile + " and " + kIndexFile,
                     "remove the one that is not meant");
  }
  if (!single && !sharded) {
    throw InputError(dir.string(), std::string("has neither ") + kSingleFile + " nor " + kIndexFile,
                     "must be a Hugging Face model folder");
  }
  std::map<std::string, std::string> weight_map;
  if (single) return weight_map;
  const Json index = parse_json(read_file(path), file);
  const auto it = index.is_object() ? index.find("weight_map") : index.end();
  if (it == index.end() || !it->is_object() || it->empty())
    throw InputError(file + ": weight_map", "must be an object of tensor and file names");
  for (const auto& [tensor, shard] : it->items()) {
    if (!shard.is_string() || !plain_file_name(shard.get<std::string>())) {
      defects.push_back({file + ": weight_map." + printable(tensor), printable(shard.dump()),
                         "must be the name of a file in this folder"});
    } else {
      weight_map.emplace(tensor, shard.get<std::string>());
    }
  }
  return weight_map;
}

void Checkpoint::Impl::open_files(const std::map<std::string, std::string>& weight_map) {
  std::vector<std::string> names;
  for (const auto& [tensor, shard] : weight_map) names.push_back(shard);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (weight_map.empty() && defects.empty()) names.push_back(kSingleFile);
  for (const std::string& name : names) {
    try {
      files.push_back(std::make_unique<SafetensorsFile>(dir / name));
      paths.push_back(dir / name);
    } catch (const InputError& error) {
      defects.insert(defects.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
}

// Where every tensor is; what the files hold must be what the index says.
void Checkpoint::Impl::take_inventory(const std::map<std::string, std::string>& weight_map) {
  for (const auto& file : files) {
    for (const TensorInfo& info : file->tensors()) {
      const Place place{file.get(), &info};
      const auto [it, fresh] = places.emplace(info.name, place);
      if (!fresh) {
        defects.push_back(
            {where(place), "duplicate, also in " + it->second.file->path().string(), ""});
        continue;
      }
      const auto entry = weight_map.find(info.name);
      if (!weight_map.empty() && entry == weight_map.end()) {
        defects.push_back({where(place), std::string("is not in ") + kIndexFile, ""});
      } else if (!weight_map.empty() && file->path().filename() != entry->second) {
        defects.push_back(
            {where(place), std::string(kIndexFile) + " says " + printable(entry->second), ""});
      }
    }
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (!places.contains(tensor))
      defects.push_back({(dir / kIndexFile).string() + ": weight_map." + printable(tensor),
                         printable(shard) + " has no such tensor", ""});
  }
}

void Checkpoint::Impl::check_expected(const ModelConfig& config) {
  std::unordered_set<std::string> known;
  for (const CheckpointTensor& t : expected) {
    known.insert(t.name);
    const auto it = places.find(t.name);
    if (it == places.end()) {
      defects.push_back({dir.string() + ": tensor " + t.name, "missing", ""});
      continue;
    }
    const TensorInfo& info = *it->second.info;
    if (info.shape != t.shape()) {
      defects.push_back({where(it->second), "shape " + shape_text(info.shape),
                         "must be " + shape_text(t.shape()) + " by config.json"});
    }
    if (info.dtype != DType::bf16 && info.dtype != DType::f16 && info.dtype != DType::f32) {
      defects.push_back({where(it->second), std::string("dtype ") + dtype_name(info.dtype),
                         "must be BF16, F16 or F32"});
    }
    bytes += info.end - info.begin;
  }
  for (const auto& file : files) {
    for (const TensorInfo& info : file->tensors()) {
      if (known.contains(info.name) || (config.tied && info.name == kHead)) continue;
      defects.push_back({where({file.get(), &info}), "extra: the model has no such tensor", ""});
    }
  }
}

void Checkpoint::Impl::check_tied_head(const ModelConfig& config) {
  const auto head = places.find(kHead);
  if (!config.tied || head == places.end()) return;
  const TensorInfo& h = *head->second.info;
  const auto embedding = places.find(kEmbedding);
  if (embedding == places.end()) return;  // reported
  const TensorInfo& e = *embedding->second.info;
  if (h.dtype != e.dtype || h.shape != e.shape ||
      std::memcmp(head->second.file->data(h), embedding->second.file->data(e), e.end - e.begin) !=
          0) {
    defects.push_back({where(head->second), "differs from the embedding",
                       "config.json ties them (tie_word_embeddings)"});
  }
}

Checkpoint::Checkpoint(const fs::path& model_dir, const ModelConfig& config)
    : impl_(std::make_unique<Impl>()) {
  impl_->dir = model_dir;
  impl_->expected = checkpoint_tensors(config);
  const auto weight_map = impl_->read_index();
  impl_->open_files(weight_map);
  if (impl_->defects.empty()) {  // an unreadable file would report all its tensors as missing
    impl_->take_inventory(weight_map);
    impl_->check_expected(config);
    impl_->check_tied_head(config);
  }
  if (!impl_->defects.empty()) throw InputError(std::move(impl_->defects));
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

void Checkpoint::read(const std::string& name, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, bf16* out) const {
  const auto it = impl_->places.find(name);
  RLK_CHECK(it != impl_->places.end(), name);
  const auto& [file, info] = it->second;
  const int64_t height = info->shape[0], width = info->shape.size() > 1 ? info->shape[1] : 1;
  RLK_CHECK(row >= 0 && rows >= 0 && row + rows <= height, name, row, rows, height);
  RLK_CHECK(column >= 0 && columns >= 0 && column + columns <= width, name, column, columns, width);
  if (rows == 0 || columns == 0) return;
  const auto element = static_cast<int64_t>(dtype_size(info->dtype));
  const std::byte* first = file->data(*info) + (row * width + column) * element;
  will_need(first, static_cast<size_t>(((rows - 1) * width + columns) * element));
  if (columns == width) return convert(info->dtype, first, rows * width, out);
  for (int64_t r = 0; r < rows; ++r)
    convert(info->dtype, first + r * width * element, columns, out + r * columns);
}

namespace {

using Sums = std::map<std::string, std::string>;  // tensor -> SHA-256 that its file states

// What one file says of its tensors; empty where it is not one of rlk's exports. A file that
// carries checksums must carry one for each of its tensors, and for nothing else.
Sums stated_sums(const SafetensorsFile& file, std::vector<Diagnostic>* defects) {
  const std::string prefix = checksum_key("");
  const auto& metadata = file.metadata();
  if (std::none_of(metadata.begin(), metadata.end(),
                   [&](const auto& entry) { return entry.first.starts_with(prefix); }))
    return {};
  Sums sums;
  for (const TensorInfo& info : file.tensors()) sums[info.name] = "";
  for (const auto& [key, value] : metadata) {
    if (key == "format") continue;
    const auto it = key.starts_with(prefix) ? sums.find(key.substr(prefix.size())) : sums.end();
    if (it == sums.end())
      defects->push_back(
          {file.path().string() + ": __metadata__." + printable(key), "belongs to no tensor", ""});
    else
      it->second = value;
  }
  return sums;
}

// Index of the first element that is not finite as bf16; `count` when there is none.
int64_t first_not_finite(DType dtype, const std::byte* data, int64_t count) {
  constexpr int64_t kBlock = 8192;
  const auto wild = [](bf16 x) { return (x.bits & 0x7F80) == 0x7F80; };
  bf16 block[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    convert(dtype, data + at * static_cast<int64_t>(dtype_size(dtype)), n, block);
    bool any = false;
    for (int64_t i = 0; i < n; ++i) any |= wild(block[i]);
    if (any) return at + (std::find_if(block, block + n, wild) - block);
  }
  return count;
}

struct TensorCheck {
  Place place;
  const std::string* sum;  // null: its file carries no checksums
  std::vector<Diagnostic> defects;

  void run() {
    const TensorInfo& info = *place.info;
    const std::byte* data = place.file->data(info);
    will_need(data, info.end - info.begin);
    if (sum != nullptr && sum->empty())
      defects.push_back({where(place), "its SHA-256 is missing", ""});
    else if (sum != nullptr && *sum != hex(sha256(data, info.end - info.begin)))
      defects.push_back({where(place), "damaged: its SHA-256 is not the recorded one", ""});
    const int64_t count = info.elements();
    const int64_t bad = first_not_finite(info.dtype, data, count);
    if (bad == count) return;
    const int64_t width = info.shape.size() > 1 ? info.shape[1] : 1;
    defects.push_back({where(place),
                       "element [" + std::to_string(bad / width) + ", " +
                           std::to_string(bad % width) + "] is not finite",
                       ""});
  }
};

}  // namespace

void Checkpoint::verify() const {
  std::vector<Diagnostic> defects;
  std::map<const SafetensorsFile*, Sums> sums;
  std::vector<TensorCheck> checks;
  for (const auto& file : impl_->files) {
    const Sums& stated = sums[file.get()] = stated_sums(*file, &defects);
    for (const TensorInfo& info : file->tensors()) {
      const auto it = stated.find(info.name);
      checks.push_back({{file.get(), &info}, it == stated.end() ? nullptr : &it->second, {}});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < checks.size(); i = next++) checks[i].run();
  };
  {
    std::vector<std::jthread> helpers;
    for (unsigned i = 1; i < std::min(kMaxThreads, std::thread::hardware_concurrency()); ++i)
      helpers.emplace_back(work);
    work();
  }
  for (TensorCheck& check : checks)
    defects.insert(defects.end(), check.defects.begin(), check.defects.end());
  if (!defects.empty()) throw InputError(std::move(defects));
}

const std::vector<fs::path>& Checkpoint::files() const {
  return impl_->paths;
}
uint64_t Checkpoint::bytes() const {
  return impl_->bytes;
}

}  // namespace rlk
