#include "rlk/base/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "rlk/base/error.h"
#include "rlk/base/json.h"

namespace rlk {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kLengthBytes = 8;

struct DTypeRow {
  DType dtype;
  const char* name;
  size_t size;
};
constexpr std::array<DTypeRow, 9> kDTypes = {{{DType::bf16, "BF16", 2},
                                              {DType::f16, "F16", 2},
                                              {DType::f32, "F32", 4},
                                              {DType::f64, "F64", 8},
                                              {DType::i64, "I64", 8},
                                              {DType::i32, "I32", 4},
                                              {DType::u8, "U8", 1},
                                              {DType::i8, "I8", 1},
                                              {DType::boolean, "BOOL", 1}}};

const DTypeRow& row_of(DType dtype) {
  const DTypeRow& row = kDTypes[static_cast<size_t>(dtype)];
  RLK_CHECK(row.dtype == dtype, static_cast<int>(dtype));
  return row;
}

// shape x size in bytes; false when it does not fit 63 bits or a dimension is negative.
bool checked_bytes(const std::vector<int64_t>& shape, size_t size, uint64_t* bytes) {
  int64_t total = static_cast<int64_t>(size);
  bool empty = false;
  for (const int64_t n : shape) {
    if (n < 0) return false;
    if (n == 0) {
      empty =
          true;  // the other dimensions must still be sane numbers, but cannot overflow the product
    } else if (__builtin_mul_overflow(total, n, &total)) {
      return false;
    }
  }
  *bytes = empty ? 0 : static_cast<uint64_t>(total);
  return true;
}

std::string shown(const std::string& name) {
  return name.size() <= 200 ? name : name.substr(0, 200) + "...";
}

// A JSON number that is an exact nonnegative 63-bit integer.
bool to_size(const Json& value, int64_t* out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) return false;
  *out = static_cast<int64_t>(value.get<uint64_t>());
  return true;
}

// One member of the header -> TensorInfo. Offsets are checked against the file later, all together.
TensorInfo parse_tensor(const std::string& name, const Json& entry, const std::string& where) {
  if (!entry.is_object()) throw InputError(where, "is not an object");
  TensorInfo info{name, DType::u8, {}, 0, 0};
  bool has_dtype = false, has_shape = false, has_offsets = false;
  for (const auto& [key, value] : entry.items()) {
    if (key == "dtype") {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                     [&](const DTypeRow& r) { return text == r.name; });
      if (row == kDTypes.end()) {
        throw InputError(where, "dtype " + shown(text) + " is not supported",
                         "must be BF16, F16, F32, F64, I64, I32, U8, I8 or BOOL");
      }
      info.dtype = row->dtype;
      has_dtype = true;
    } else if (key == "shape") {
      if (!value.is_array()) throw InputError(where, "shape is not an array");
      for (const Json& item : value) {
        int64_t n = 0;
        if (!to_size(item, &n)) throw InputError(where, "shape has " + shown(item.dump()));
        info.shape.push_back(n);
      }
      has_shape = true;
    } else if (key == "data_offsets") {
      int64_t begin = 0, end = 0;
      if (!value.is_array() || value.size() != 2 || !to_size(value[0], &begin) ||
          !to_size(value[1], &end)) {
        throw InputError(where, "data_offsets are not two nonnegative integers");
      }
      info.begin = static_cast<uint64_t>(begin);
      info.end = static_cast<uint64_t>(end);
      has_offsets = true;
    } else {
      throw InputError(where, "unknown key \"" + shown(key) + "\"");
    }
  }
  if (!has_dtype) throw InputError(where, "dtype is missing");
  if (!has_shape) throw InputError(where, "shape is missing");
  if (!has_offsets) throw InputError(where, "data_offsets are missing");
  return info;
}

std::string range(const TensorInfo& t) {
  return std::to_string(t.begin) + ".." + std::to_string(t.end);
}

// Tensors sorted by offset must tile the data section exactly.
void check_layout(const std::vector<TensorInfo>& tensors, uint64_t data_start, uint64_t data_bytes,
                  const std::string& file) {
  uint64_t at = 0;
  for (const TensorInfo& t : tensors) {
    const std::string where = file + ": tensor " + shown(t.name);
    if (t.begin > t.end) throw InputError(where, "data_offsets " + range(t) + " run backwards");
    uint64_t bytes = 0;
    if (!checked_bytes(t.shape, dtype_size(t.dtype), &bytes))
      throw InputError(where, "shape overflows");
    if (t.end - t.begin != bytes) {
      throw InputError(where, "data_offsets " + range(t) + " hold " +
                                  std::to_string(t.end - t.begin) +
                                  " bytes, shape and dtype need " + std::to_string(bytes));
    }
    if (t.end > data_bytes) {
      throw InputError(where,
                       "data_offsets " + range(t) + " end beyond the data of " +
                           std::to_string(data_bytes) + " bytes",
                       "the file is truncated or damaged");
    }
    if (t.begin != at) {
      throw InputError(where,
                       "data_offsets " + range(t) +
                           (t.begin < at ? " overlap the data before " : " leave a hole after ") +
                           std::to_string(at));
    }
    if ((data_start + t.begin) % dtype_size(t.dtype) != 0) {
      throw InputError(where,
                       "data at byte " + std::to_string(data_start + t.begin) +
                           " of the file is not aligned to " + dtype_name(t.dtype),
                       "save the file again with a current safetensors library");
    }
    at = t.end;
  }
  if (at != data_bytes) {
    throw InputError(file, std::to_string(data_bytes - at) + " bytes after the last tensor");
  }
}

std::vector<std::pair<std::string, std::string>> parse_metadata(const Json& entry,
                                                                const std::string& where) {
  if (!entry.is_object()) throw InputError(where, "is not an object");
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      throw InputError(where, "value of \"" + shown(key) + "\" is not a string");
    metadata.emplace_back(key, value.get<std::string>());
  }
  return metadata;
}

uint64_t load_le64(const std::byte* p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(p[i]);
  return value;
}

}  // namespace

size_t dtype_size(DType dtype) {
  return row_of(dtype).size;
}
const char* dtype_name(DType dtype) {
  return row_of(dtype).name;
}

int64_t TensorInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// ---------------------------------------------------------------------------------------- reader

struct SafetensorsFile::Impl {
  std::filesystem::path path;
  std::byte* map = nullptr;
  uint64_t size = 0, data_start = 0;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string, size_t> index;
  std::vector<std::pair<std::string, std::string>> metadata;

  ~Impl() {
    if (map != nullptr) munmap(map, size);
  }
  void open_and_map();
  void parse_header();
};

void SafetensorsFile::Impl::open_and_map() {
  const std::string file = path.string();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw InputError(file, std::strerror(errno));
  struct stat st {};
  const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  size = regular ? static_cast<uint64_t>(st.st_size) : 0;
  void* mapped = MAP_FAILED;
  if (regular && size >= kLengthBytes) mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (!regular) throw InputError(file, "is not a regular file");
  if (size < kLengthBytes)
    throw InputError(file,
                     "has " + std::to_string(size) + " bytes, too few for a safetensors file");
  if (mapped == MAP_FAILED) {
    errno = map_errno;
    throw system_error("mmap " + file);
  }
  map = static_cast<std::byte*>(mapped);
}

void SafetensorsFile::Impl::parse_header() {
  const std::string file = path.string();
  const uint64_t length = load_le64(map);
  if (length > kMaxHeader) {
    throw InputError(file, "header length " + std::to_string(length) + " is larger than " +
                               std::to_string(kMaxHeader));
  }
  if (length > size - kLengthBytes) {
    throw InputError(file, "header length " + std::to_string(length) +
                               " is larger than the file of " + std::to_string(size) + " bytes");
  }
  data_start = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(map) + kLengthBytes, length);
  if (!text.starts_with('{')) throw InputError(file, "header does not begin with {");
  const Json header = parse_json(text, file + " header");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata = parse_metadata(entry, file + ": __metadata__");
    } else {
      tensors.push_back(parse_tensor(name, entry, file + ": tensor " + shown(name)));
    }
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_layout(tensors, data_start, size - data_start, file);
  for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->open_and_map();
  impl_->parse_header();
}

SafetensorsFile::~SafetensorsFile() = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return impl_->path;
}
const std::vector<TensorInfo>& SafetensorsFile::tensors() const {
  return impl_->tensors;
}
const std::vector<std::pair<std::string, std::string>>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto it = impl_->index.find(name);
  return it == impl_->index.end() ? nullptr : &impl_->tensors[it->second];
}

const std::byte* SafetensorsFile::data(const TensorInfo& tensor) const {
  return impl_->map + impl_->data_start + tensor.begin;
}

// ---------------------------------------------------------------------------------------- writer

struct SafetensorsWriter::Impl {
  std::filesystem::path path, temporary;
  std::vector<TensorInfo> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  int fd = -1;
  uint64_t written = 0, data_bytes = 0;
  size_t header_bytes = 0;

  ~Impl() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
  void lay_out();
  std::string header() const;
  void write_all(const void* data, size_t bytes, uint64_t offset);
  void sync_folder();
};

void SafetensorsWriter::Impl::lay_out() {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  std::unordered_set<std::string> names;
  for (TensorInfo& t : tensors) {
    RLK_CHECK(names.insert(t.name).second && t.name != "__metadata__", t.name);
    uint64_t bytes = 0;
    RLK_CHECK(checked_bytes(t.shape, dtype_size(t.dtype), &bytes), t.name);
    t.begin = data_bytes;
    t.end = data_bytes += bytes;
  }
}

// Length word and JSON, padded with spaces to 8 bytes.
std::string SafetensorsWriter::Impl::header() const {
  Json json = Json::object();
  auto& members = json.get_ref<Json::object_t&>();  // emplace_back: names are known to be unique
  if (!metadata.empty()) {
    Json strings = Json::object();
    for (const auto& [key, value] : metadata)
      strings.get_ref<Json::object_t&>().emplace_back(key, value);
    members.emplace_back("__metadata__", std::move(strings));
  }
  for (const TensorInfo& t : tensors) {
    members.emplace_back(t.name, Json{{"dtype", dtype_name(t.dtype)},
                                      {"shape", t.shape},
                                      {"data_offsets", {t.begin, t.end}}});
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return length + text;
}

void SafetensorsWriter::Impl::write_all(const void* data, size_t bytes, uint64_t offset) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw system_error("write " + path.string());
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void SafetensorsWriter::Impl::sync_folder() {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) throw system_error("open " + folder.string());
  const int rc = ::fsync(dir);
  ::close(dir);
  if (rc != 0) throw system_error("fsync " + folder.string());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorInfo> tensors,
                                     std::vector<std::pair<std::string, std::string>> metadata)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->tensors = std::move(tensors);
  impl_->metadata = std::move(metadata);
  impl_->lay_out();
  const std::string header = impl_->header();
  impl_->header_bytes = header.size();
  const std::string temporary = path.string() + ".tmp." + std::to_string(getpid());
  impl_->fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (impl_->fd < 0) throw system_error("create " + temporary);
  impl_->temporary = temporary;
  impl_->write_all(header.data(), header.size(), 0);
}

SafetensorsWriter::~SafetensorsWriter() = default;

const std::vector<TensorInfo>& SafetensorsWriter::layout() const {
  return impl_->tensors;
}

void SafetensorsWriter::append(const void* data, size_t bytes) {
  RLK_CHECK(bytes <= impl_->data_bytes - impl_->written, bytes, impl_->written, impl_->data_bytes);
  impl_->write_all(data, bytes, impl_->header_bytes + impl_->written);
  impl_->written += bytes;
}

void SafetensorsWriter::set_metadata(const std::string& key, const std::string& value) {
  for (auto& [k, v] : impl_->metadata) {
    if (k != key) continue;
    RLK_CHECK(v.size() == value.size(), key, v.size(), value.size());
    v = value;
    return;
  }
  RLK_CHECK(false, key);
}

void SafetensorsWriter::commit() {
  RLK_CHECK(impl_->written == impl_->data_bytes, impl_->written, impl_->data_bytes);
  const std::string header = impl_->header();
  RLK_CHECK(header.size() == impl_->header_bytes, header.size(), impl_->header_bytes);
  impl_->write_all(header.data(), header.size(), 0);
  if (::fsync(impl_->fd) != 0) throw system_error("fsync " + impl_->path.string());
  const int rc = ::close(std::exchange(impl_->fd, -1));
  if (rc != 0) throw system_error("close " + impl_->path.string());
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0)
    throw system_error("rename " + impl_->path.string());
  impl_->temporary.clear();
  impl_->sync_folder();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<TensorInfo> infos;
  std::unordered_map<std::string, const void*> data;
  for (const TensorSource& t : tensors) {
    infos.push_back({t.name, t.dtype, t.shape, 0, 0});
    data.emplace(t.name, t.data);
  }
  SafetensorsWriter writer(path, std::move(infos), metadata);
  for (const TensorInfo& t : writer.layout())
    writer.append(data.at(t.name), static_cast<size_t>(t.end - t.begin));
  writer.commit();
}

}  // namespace rlk
