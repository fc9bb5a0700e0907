#pragma once
// A group of a ShmWorld. All data moves through the group's staging in chunks; one meeting
// (barrier) per chunk is enough because staging is doubled: who writes a buffer for the second time
// has passed a meeting that every reader of the first use came to.
//
// Ownership: points into the world's mapping, which must outlive it. Threads: one.

#include <chrono>
#include <string>

#include "rlk/comm/communicator.h"
#include "shm_layout.h"

namespace rlk {

// The mapped memfd as one rank sees it.
struct ShmView {
  shm::Control* control;
  char* base;  // of the mapping; == control
  int rank;
  std::chrono::milliseconds timeout;

  char* staging(int slot, int member) const {
    return base + shm::kStagingOffset +
           static_cast<size_t>(slot) * shm::group_staging_bytes(static_cast<int>(control->ranks)) +
           static_cast<size_t>(member) * shm::kStagingBytes;
  }
  char* arena(int of_rank) const {
    return base + shm::arena_offset(static_cast<int>(control->ranks)) +
           static_cast<size_t>(of_rank) * control->arena_bytes;
  }
};

std::string read_abort_reason(const shm::Control&);

class ShmCommunicator final : public Communicator {
 public:
  // Joins slot `slot` (claimed under this group's key) and meets the other members.
  ShmCommunicator(const ShmView&, int slot, int rank_in_group, std::vector<int> members,
                  std::string name);

  void barrier(Stream) override;
  void all_gather(Stream, const void* in, void* out, size_t bytes) override;
  void tree_reduce(Stream, const float* partial, void* out, int64_t n, bool out_f32) override;
  void broadcast(Stream, void* data, size_t bytes, int root) override;
  void* peer(int member, const void* mine) const override;

 private:
  shm::Signature begin(shm::Kind kind, size_t bytes, uint32_t detail = 0);
  // Comes to the group's next meeting, waits for the others and compares signatures.
  void meet(const shm::Signature&);
  void wait(const shm::Signature&);
  void compare(const shm::Signature&) const;

  // Staging that belongs to the next meeting (while it is filled) or, after meet(), to the one just
  // held.
  char* chunk(int member, uint32_t meeting) const;
  char* result(int member, uint32_t meeting) const;

  void reduce_whole(const shm::Signature&, const float* partial, void* out, int64_t n,
                    bool out_f32);
  void reduce_sliced(const shm::Signature&, const float* partial, void* out, int64_t n,
                     bool out_f32);

  std::string describe(const shm::Signature&) const;  // "all_gather #17 of group tp, 4096 bytes"
  std::string place(const shm::Signature& s) const;   // "rank 3: " + describe
  std::string absent_members() const;
  std::string last_seen(int world_rank) const;

  ShmView view_;
  shm::Group* group_;
  int slot_;
  std::string name_;
  uint64_t sequence_ = 0;
  uint32_t meetings_ = 0;
};

}  // namespace rlk
