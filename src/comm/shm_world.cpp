#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "futex.h"
#include "rlk/base/error.h"
#include "rlk/base/trace_hash.h"
#include "rlk/comm/world.h"
#include "shm_communicator.h"
#include "shm_layout.h"

namespace rlk {
namespace {

using shm::Control;

// A mapping of the whole memfd. Move-only owner.
class Mapping {
 public:
  Mapping(int fd, size_t bytes) : bytes_(bytes) {
    base_ = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (base_ == MAP_FAILED)
      throw system_error("mmap of " + std::to_string(bytes) + " shared bytes");
  }
  ~Mapping() { munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* base() const { return base_; }
  Control* control() const { return reinterpret_cast<Control*>(base_); }

 private:
  char* base_;
  size_t bytes_;
};

size_t file_bytes(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) throw system_error("fstat of descriptor " + std::to_string(fd));
  return static_cast<size_t>(info.st_size);
}

// Throws Error unless the descriptor is a world of shm_world_create.
void check_world(int fd, size_t bytes) {
  const std::string what = "descriptor " + std::to_string(fd) + ": not a shared world";
  if (bytes < sizeof(Control)) throw Error(what + ": " + std::to_string(bytes) + " bytes");
  const Mapping head(fd, sizeof(Control));
  const Control& c = *head.control();
  if (c.magic != shm::kMagic) throw Error(what + ": wrong magic number");
  const size_t expected = shm_world_bytes(static_cast<int>(c.ranks), c.arena_bytes);
  if (bytes != expected)
    throw Error(what + ": " + std::to_string(bytes) + " bytes, " + std::to_string(expected) +
                " expected");
}

void raise_abort(Control& control, const std::string& given) {
  const std::string reason = given.empty() ? "no reason given" : given;
  uint32_t state = shm::kRunning;
  if (control.abort_state.compare_exchange_strong(state, shm::kAborting)) {
    const size_t length = std::min(reason.size(), shm::kReasonBytes - 1);
    std::memcpy(control.reason, reason.data(), length);
    control.reason[length] = '\0';
    control.abort_state.store(shm::kAborted, std::memory_order_release);
  }
  // The flag is part of the word that waiters sleep on, so no wake-up can be lost. Free slots too:
  // a group may be joined at this moment.
  for (shm::Group& group : control.group) {
    group.epoch.fetch_or(1, std::memory_order_acq_rel);
    futex_wake_all(&group.epoch);
  }
}

class ShmWorld final : public World {
 public:
  ShmWorld(int fd, size_t bytes, int rank, std::chrono::milliseconds timeout)
      : World(rank, 0),
        mapping_(fd, bytes),
        view_{mapping_.control(), mapping_.base(), rank, timeout} {
    size_ = static_cast<int>(view_.control->ranks);
    if (rank < 0 || rank >= size_)
      throw Error("rank " + std::to_string(rank) + " of a world of " + std::to_string(size_) +
                  " ranks");
  }

  void* arena_alloc(size_t bytes) override {
    const size_t aligned = shm::round_up(bytes, 256);
    const size_t capacity = view_.control->arena_bytes;
    if (aligned < bytes || aligned > capacity - used_)
      throw Error("rank " + std::to_string(rank_) +
                  ": shared arena is full: " + std::to_string(bytes) + " bytes asked for, " +
                  std::to_string(capacity - used_) + " of " + std::to_string(capacity) + " left");
    void* here = view_.arena(rank_) + used_;
    used_ += aligned;
    return here;
  }

  std::unique_ptr<Communicator> group(const std::vector<int>& members,
                                      const std::string& name) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    RLK_CHECK(self != members.end(), rank_, name);
    RLK_CHECK(
        std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end(),
        name);
    RLK_CHECK(members.front() >= 0 && members.back() < size_, name, members.back(), size_);
    const int slot = members.size() == 1 ? 0 : claim_slot(members, name);
    return std::make_unique<ShmCommunicator>(view_, slot, static_cast<int>(self - members.begin()),
                                             members, name);
  }

  void abort(const std::string& reason) override { raise_abort(*view_.control, reason); }
  std::string abort_reason() const override { return read_abort_reason(*view_.control); }

 private:
  // The members agree on a slot without talking: slots are never freed and everyone looks from the
  // first one on, so the first free slot goes to one key, and all members of that key find it
  // there.
  int claim_slot(const std::vector<int>& members, const std::string& name) {
    std::string identity = name;
    for (int m : members) identity += "," + std::to_string(m);
    identity += "#" + std::to_string(instances_[identity]++);
    const uint64_t key = hash_bytes(identity.data(), identity.size(), shm::kMagic) | 1;
    for (int slot = 0; slot < shm::kMaxGroups; ++slot) {
      shm::Group& group = view_.control->group[slot];
      uint64_t found = group.key.load(std::memory_order_acquire);
      if (found == 0 && group.key.compare_exchange_strong(found, key)) {
        std::memcpy(group.name, name.data(), std::min(name.size(), shm::kNameBytes - 1));
        return slot;
      }
      if (found == key) return slot;
    }
    throw Error("rank " + std::to_string(rank_) + ": no room for group " + name + ": a world has " +
                std::to_string(shm::kMaxGroups) + " groups");
  }

  Mapping mapping_;
  ShmView view_;
  size_t used_ = 0;
  std::map<std::string, int> instances_;
};

}  // namespace

std::string read_abort_reason(const Control& control) {
  const auto state = control.abort_state.load(std::memory_order_acquire);
  if (state == shm::kRunning) return "";
  // Whoever raised the flag is writing its reason; one that died in between leaves none.
  for (int i = 0; i < 100 && control.abort_state.load(std::memory_order_acquire) != shm::kAborted;
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (control.abort_state.load(std::memory_order_acquire) != shm::kAborted)
    return "no reason recorded";
  return control.reason;
}

size_t shm_world_bytes(int ranks, size_t arena_bytes) {
  return shm::arena_offset(ranks) +
         static_cast<size_t>(ranks) * shm::round_up(arena_bytes, shm::kArenaAlignment);
}

int shm_world_create(int ranks, size_t arena_bytes) {
  RLK_CHECK(ranks >= 1 && ranks <= shm::kMaxRanks, ranks);
  const int fd = memfd_create("rlk-world", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw system_error("memfd_create");
  try {
    const size_t bytes = shm_world_bytes(ranks, arena_bytes);
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0)
      throw system_error("ftruncate of the shared world to " + std::to_string(bytes) + " bytes");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      throw system_error("sealing the shared world");
    const Mapping head(fd, sizeof(Control));
    head.control()->arena_bytes = shm::round_up(arena_bytes, shm::kArenaAlignment);
    head.control()->ranks = static_cast<uint32_t>(ranks);
    head.control()->magic = shm::kMagic;
  } catch (...) {
    close(fd);
    throw;
  }
  return fd;
}

void shm_world_abort(int fd, const std::string& reason) {
  const size_t bytes = file_bytes(fd);
  check_world(fd, bytes);
  const Mapping head(fd, sizeof(Control));
  raise_abort(*head.control(), reason);
}

std::unique_ptr<World> shm_world_open(int fd, int rank, std::chrono::milliseconds timeout) {
  const size_t bytes = file_bytes(fd);
  check_world(fd, bytes);
  return std::make_unique<ShmWorld>(fd, bytes, rank, timeout);
}

}  // namespace rlk
