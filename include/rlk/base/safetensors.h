#pragma once
// safetensors files: an mmap'd reader that trusts nothing, and an atomic writer. Format: 8-byte
// little-endian header length, JSON header, data. Reader errors are InputError naming file, tensor
// and place; headers of at most 100 MB. A SafetensorsFile is immutable and may be shared by
// threads; views live as long as the file object. The file must not shrink meanwhile (a mapped page
// that is gone is SIGBUS). A SafetensorsWriter belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rlk {

enum class DType { bf16, f16, f32, f64, i64, i32, u8, i8, boolean };
size_t dtype_size(DType);
const char* dtype_name(DType);  // as safetensors spells it: "BF16"

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data section
  int64_t elements() const;
};

class SafetensorsFile {
 public:
  // Validates everything that the header says: length, JSON, duplicate keys, dtypes, shapes,
  // offsets (contiguous, no overlap, no hole, inside the file, equal to shape x dtype without
  // overflow, aligned to the dtype).
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const;
  const std::vector<TensorInfo>& tensors() const;         // in file order
  const TensorInfo* find(const std::string& name) const;  // null when absent
  const std::byte* data(const TensorInfo&) const;
  const std::vector<std::pair<std::string, std::string>>& metadata() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Tensors to write; data is borrowed until write_safetensors returns.
struct TensorSource {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const void* data;
};

// Writes to a temporary beside `path`, fsyncs, renames. Tensors are laid out by falling element
// size, so that each is aligned, otherwise in the given order. Names must be unique. Throws Error
// on any I/O failure (disk full included) and leaves nothing behind.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {});

// The same, one tensor at a time, for files larger than memory. Nothing exists at `path` before
// commit() returns; the destructor removes the temporary of a file that was not committed.
class SafetensorsWriter {
 public:
  // `tensors` are names, dtypes and shapes (begin and end are ignored); the layout rule is
  // write_safetensors'.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    std::vector<std::pair<std::string, std::string>> metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  const std::vector<TensorInfo>& layout() const;  // the order in which append() wants the data
  void append(const void* data, size_t bytes);    // the next bytes of the data section
  // Replaces a metadata value by one of the same length (hashes known only once the data was seen).
  void set_metadata(const std::string& key, const std::string& value);
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rlk
