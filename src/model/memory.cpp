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

KvLayout kv_layout(int64_t KH, int64_t Dh, int32_t page_size) {
  // Head by head inside a page: a head's keys are contiguous rows, which is what the copy engine wants.
  return {.page_size = page_size, .page_stride = KH * page_size * Dh, .token_stride = Dh,
          .head_stride = page_size * Dh};
}

}  // namespace rlk
