#pragma once
// Lays typed arrays one after the other in a block of memory, each on a 256-byte boundary. With a
// null base it only measures.

#include <cstdint>

namespace rlk {

class Carve {
 public:
  explicit Carve(void* base) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t elements) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + at_) : nullptr;
    at_ += (elements * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return p;
  }
  int64_t bytes() const { return at_; }

 private:
  char* base_;
  int64_t at_ = 0;
};

}  // namespace rlk
