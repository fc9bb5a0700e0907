#pragma once
// What all ranks of a run share: the arena every rank exports and the groups made over it.
//
// CPU (ShmWorld): one memfd, made by the launcher and inherited by every worker, holds control
// block, staging and one arena per rank; so nothing has a name and nothing is left behind whatever
// ends the run. CUDA (ipc_world_open) exports cudaMalloc'd arenas and meets through flags in device
// memory. The control block's abort flag is raised by the first rank that fails, or by the
// launcher: all waits end.

#include <chrono>
#include <memory>
#include <string>

#include "rlk/comm/communicator.h"

namespace rlk {

class World {
 public:
  virtual ~World() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // `bytes` of this rank's arena, 256-byte aligned, zeroed. Every rank must make the same sequence
  // of calls (peer() relies on it). Throws Error when the arena is full, naming both sizes.
  virtual void* arena_alloc(size_t bytes) = 0;

  // Communicator over `members` (world ranks, ascending, this rank among them). Collective over the
  // members, in the same order.
  virtual std::unique_ptr<Communicator> group(const std::vector<int>& members,
                                              const std::string& name) = 0;

  virtual void abort(
      const std::string& reason) = 0;  // ends every rank's waits; the first reason is kept
  virtual std::string abort_reason() const = 0;  // empty while nobody aborted

 protected:
  World(int rank, int size) : rank_(rank), size_(size) {}
  int rank_, size_;
};

// Bytes of the memfd for `ranks` arenas of `arena_bytes`.
size_t shm_world_bytes(int ranks, size_t arena_bytes);
// Launcher side: makes the memfd (no name; close-on-exec: a child gets it by dup2) and initialises
// it. Returns the descriptor.
int shm_world_create(int ranks, size_t arena_bytes);
// Launcher side: raises the abort flag in an existing world.
void shm_world_abort(int fd, const std::string& reason);
// Worker side. `timeout` bounds every wait.
std::unique_ptr<World> shm_world_open(int fd, int rank, std::chrono::milliseconds timeout);

// Worker side, CUDA ranks of one host (binaries built with RLK_CUDA): exports `arena_bytes` of the
// current device's memory and maps every rank's. `host` carries the exchange and abort(), and must
// outlive the world. Collectives enqueue on their stream and may be captured; `timeout` bounds
// their waits on the device. A wait that fails, or members in different collectives (kind, bytes),
// is reported by the next Ops::synchronize, naming rank, group, collective, meeting and member;
// what was computed since is void. Groups have 1, 2, 4 or 8 members. Destroy worlds and groups
// after a barrier.
std::unique_ptr<World> ipc_world_open(World& host, size_t arena_bytes,
                                      std::chrono::milliseconds timeout);

}  // namespace rlk
