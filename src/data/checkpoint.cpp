#include "rlk/data/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
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
  void check_sums(const SafetensorsFile& file, std::vector<Diagnostic>* found) const;
  void check_finite(const CheckpointTensor& tensor, const Checkpoint& checkpoint,
                    std::vector<Diagnostic>* found) const;
};

std::map<std::string, std::string> Checkpoint::Impl::read_index() {
  const fs::path path = dir / kIndexFile;
  const std::string file = path.string();
  const bool single = fs::exists(dir / kSingleFile), sharded = fs::exists(path);
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

// A file that carries checksums must carry one for each of its tensors, and for nothing else.
void Checkpoint::Impl::check_sums(const SafetensorsFile& file,
                                  std::vector<Diagnostic>* found) const {
  std::map<std::string, std::string> sums;
  for (const auto& [key, value] : file.metadata())
    if (key != "format") sums.emplace(key, value);
  const std::string prefix = checksum_key("");
  if (std::none_of(sums.begin(), sums.end(),
                   [&](const auto& sum) { return sum.first.starts_with(prefix); }))
    return;  // not one of rlk's exports
  for (const TensorInfo& info : file.tensors()) {
    const auto sum = sums.find(checksum_key(info.name));
    if (sum == sums.end()) {
      found->push_back({where({&file, &info}), "its SHA-256 is missing", ""});
    } else if (sum->second != hex(sha256(file.data(info), info.end - info.begin))) {
      found->push_back({where({&file, &info}), "damaged: its SHA-256 is not the recorded one", ""});
    }
  }
  for (const auto& [key, value] : sums) {
    if (!key.starts_with(prefix) || file.find(key.substr(prefix.size())) == nullptr)
      found->push_back(
          {file.path().string() + ": __metadata__." + printable(key), "belongs to no tensor", ""});
  }
}

void Checkpoint::Impl::check_finite(const CheckpointTensor& t, const Checkpoint& checkpoint,
                                    std::vector<Diagnostic>* found) const {
  std::vector<bf16> row(static_cast<size_t>(t.columns));
  for (int64_t r = 0; r < t.rows; ++r) {
    checkpoint.read(t.name, r, 1, 0, t.columns, row.data());
    const auto bad =
        std::find_if(row.begin(), row.end(), [](bf16 x) { return (x.bits & 0x7F80) == 0x7F80; });
    if (bad == row.end()) continue;
    found->push_back({where(places.at(t.name)),
                      "element [" + std::to_string(r) + ", " + std::to_string(bad - row.begin()) +
                          "] is not finite",
                      ""});
    return;
  }
}

void Checkpoint::verify() const {
  std::vector<Diagnostic> defects;
  for (const auto& file : impl_->files) impl_->check_sums(*file, &defects);
  for (const CheckpointTensor& t : impl_->expected) impl_->check_finite(t, *this, &defects);
  if (!defects.empty()) throw InputError(std::move(defects));
}

const std::vector<fs::path>& Checkpoint::files() const {
  return impl_->paths;
}
uint64_t Checkpoint::bytes() const {
  return impl_->bytes;
}

}  // namespace rlk
