#include "rlk/model/memory.h"

namespace rlk {

void* DeviceBuffer::ensure(int64_t bytes) {
  if (bytes > bytes_) {
    ops_->free(data_);
    data_ = nullptr;
    data_ = ops_->alloc(static_cast<size_t>(bytes));
    bytes_ = bytes;
  }
  return data_;
}

void Upload::commit(Stream stream) {
  device_ = buffer_.ensure(static_cast<int64_t>(host_.size()));
  ops_->copy(stream, device_, host_.data(), host_.size());
  ops_->synchronize(stream);
}

}  // namespace rlk
