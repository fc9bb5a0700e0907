#pragma once
// Device memory that engines hold: buffers that grow but never shrink, and host arrays uploaded
// together.

#include <cstdint>
#include <cstring>
#include <vector>

#include "rlk/device/ops.h"

namespace rlk {

// Grow-only device memory; contents are undefined after a growth. Move-only.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(const Ops& ops) : ops_(&ops) {}
  ~DeviceBuffer() { ops_->free(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : ops_(other.ops_), data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
    other.bytes_ = 0;
  }
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  // At least `bytes` bytes, 256-byte aligned. The device must be done with the old contents.
  void* ensure(int64_t bytes);

 private:
  const Ops* ops_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Host arrays laid out one after the other and copied to the device in one transfer. Usage: add()
// all, commit() once, then at().
class Upload {
 public:
  explicit Upload(const Ops& ops) : ops_(&ops), buffer_(ops) {}

  void clear() { host_.clear(); }
  template <class T>
  int64_t add(const std::vector<T>& values) {
    const int64_t at = static_cast<int64_t>(host_.size());
    const size_t bytes = values.size() * sizeof(T);
    host_.resize(host_.size() + (bytes + 255) / 256 * 256);
    if (bytes > 0) std::memcpy(host_.data() + at, values.data(), bytes);
    return at;
  }
  void commit(Stream);
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(device_) + offset);
  }

 private:
  const Ops* ops_;
  DeviceBuffer buffer_;
  std::vector<char> host_;
  void* device_ = nullptr;
};

}  // namespace rlk
