#pragma once
// Device memory that the members of a group map from each other. Owned by this rank's side; not
// copied. One thread.

#include <cstddef>
#include <vector>

#include "rlk/comm/communicator.h"

namespace rlk {

class IpcMemory {
 public:
  // Allocates `bytes` zeroed on the current device and maps the same of every member. Collective
  // over `host`'s members.
  IpcMemory(Communicator& host, size_t bytes);
  ~IpcMemory();
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  size_t bytes() const { return bytes_; }
  void* mine() const { return at_[static_cast<size_t>(rank_)]; }
  void* of(int member) const { return at_[static_cast<size_t>(member)]; }

 private:
  void release();

  int rank_;
  size_t bytes_;
  std::vector<void*> at_;  // by member; null where not mapped
};

}  // namespace rlk
