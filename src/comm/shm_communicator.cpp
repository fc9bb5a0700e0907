#include "shm_communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "futex.h"
#include "rlk/base/error.h"
#include "tree.h"

namespace rlk {
namespace {

using shm::Kind;
using shm::Signature;

// A waiter lets others run this often before it sleeps. With more ranks than cores a yield hands
// the core to a peer that has not arrived, which costs a third of a sleep and a wake-up; a rank
// with a core of its own gets its core back at once, and looks again. Measured:
// docs/bench/cpu-collectives.csv.
constexpr int kYields = 16;

// From this many fp32 values on, each member reduces a slice and shares it.
constexpr int64_t kSlicedFrom = 4 << 10;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::barrier:
      return "barrier";
    case Kind::all_gather:
      return "all_gather";
    case Kind::tree_reduce:
      return "tree_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::group:
      return "group";
    case Kind::none:
      break;
  }
  return "nothing";
}

std::string seconds(std::chrono::milliseconds t) {
  std::string text = std::to_string(t.count() / 1000);
  const auto ms = t.count() % 1000;
  if (ms != 0) text += "." + std::to_string(1000 + ms).substr(1);
  return text + " s";
}

}  // namespace

ShmCommunicator::ShmCommunicator(const ShmView& view, int slot, int rank_in_group,
                                 std::vector<int> members, std::string name)
    : Communicator(rank_in_group, std::move(members)),
      view_(view),
      group_(&view.control->group[slot]),
      slot_(slot),
      name_(std::move(name)) {
  if (size() > 1) meet(begin(Kind::group, 0));
}

Signature ShmCommunicator::begin(Kind kind, size_t bytes, uint32_t detail) {
  const Signature signature{++sequence_, bytes, kind, detail};
  view_.control->rank[view_.rank].last_call.store(
      static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(slot_) << 48 | sequence_,
      std::memory_order_relaxed);
  return signature;
}

void ShmCommunicator::meet(const Signature& signature) {
  const uint32_t number = ++meetings_;
  shm::Member& self = group_->member[rank_];
  self.signature[number & 1] = signature;
  self.meetings.store(number, std::memory_order_release);
  const uint32_t everyone = number * static_cast<uint32_t>(size());
  if (group_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == everyone) {
    group_->epoch.fetch_add(2, std::memory_order_acq_rel);
    futex_wake_all(&group_->epoch);
  }
  wait(signature);
  compare(signature);
}

void ShmCommunicator::wait(const Signature& signature) {
  const uint32_t done = 2 * meetings_;
  uint32_t epoch = group_->epoch.load(std::memory_order_acquire);
  for (int i = 0; epoch != done && i < kYields; ++i) {
    sched_yield();
    epoch = group_->epoch.load(std::memory_order_acquire);
  }
  const auto deadline = std::chrono::steady_clock::now() + view_.timeout;
  while ((epoch & ~1u) != done && (epoch & 1u) == 0) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero())
      throw Error(place(signature) + ": no arrival within " + seconds(view_.timeout) + " of " +
                  absent_members());
    futex_wait(&group_->epoch, epoch, left);
    epoch = group_->epoch.load(std::memory_order_acquire);
  }
  if (epoch & 1u)
    throw AbortError(place(signature) + ": run aborted: " + read_abort_reason(*view_.control));
}

void ShmCommunicator::compare(const Signature& mine) const {
  for (int m = 0; m < size(); ++m) {
    const Signature& theirs = group_->member[m].signature[meetings_ & 1];
    if (theirs == mine) continue;
    throw Error(place(mine) + ": does not match rank " +
                std::to_string(members_[static_cast<size_t>(m)]) + ": " + describe(theirs));
  }
}

char* ShmCommunicator::chunk(int member, uint32_t meeting) const {
  return view_.staging(slot_, member) + (meeting & 1) * shm::kChunkBytes;
}

char* ShmCommunicator::result(int member, uint32_t meeting) const {
  return view_.staging(slot_, member) + 2 * shm::kChunkBytes +
         (meeting & 1) * (shm::kChunkBytes / 2);
}

void ShmCommunicator::barrier(Stream) {
  if (size() > 1) meet(begin(Kind::barrier, 0));
}

void ShmCommunicator::all_gather(Stream, const void* in, void* out, size_t bytes) {
  auto* to = static_cast<char*>(out);
  char* own = to + static_cast<size_t>(rank_) * bytes;
  if (in != own && bytes > 0) std::memcpy(own, in, bytes);
  if (size() == 1) return;
  const Signature signature = begin(Kind::all_gather, bytes);
  size_t at = 0;
  do {  // one meeting even for no bytes: a collective is where members agree
    const size_t part = std::min(shm::kChunkBytes, bytes - at);
    if (part > 0) std::memcpy(chunk(rank_, meetings_ + 1), own + at, part);
    meet(signature);
    for (int m = 0; m < size() && part > 0; ++m)
      if (m != rank_)
        std::memcpy(to + static_cast<size_t>(m) * bytes + at, chunk(m, meetings_), part);
    at += part;
  } while (at < bytes);
}

void ShmCommunicator::broadcast(Stream, void* data, size_t bytes, int root) {
  RLK_CHECK(root >= 0 && root < size(), root, size());
  if (size() == 1) return;
  auto* here = static_cast<char*>(data);
  const Signature signature = begin(Kind::broadcast, bytes, static_cast<uint32_t>(root));
  size_t at = 0;
  do {
    const size_t part = std::min(shm::kChunkBytes, bytes - at);
    if (part > 0 && rank_ == root) std::memcpy(chunk(root, meetings_ + 1), here + at, part);
    meet(signature);
    if (part > 0 && rank_ != root) std::memcpy(here + at, chunk(root, meetings_), part);
    at += part;
  } while (at < bytes);
}

void ShmCommunicator::tree_reduce(Stream, const float* partial, void* out, int64_t n,
                                  bool out_f32) {
  RLK_CHECK(size() == 1 || size() == 2 || size() == 4 || size() == 8, name_, size());
  RLK_CHECK(n >= 0, n);
  if (size() == 1) {
    out_f32 ? tree_f32(&partial, 1, static_cast<float*>(out), n)
            : tree_bf16(&partial, 1, static_cast<bf16*>(out), n);
    return;
  }
  const Signature signature =
      begin(Kind::tree_reduce, static_cast<size_t>(n) * sizeof(float), out_f32 ? 1 : 0);
  n < kSlicedFrom ? reduce_whole(signature, partial, out, n, out_f32)
                  : reduce_sliced(signature, partial, out, n, out_f32);
}

// Every member adds all of it: one meeting.
void ShmCommunicator::reduce_whole(const Signature& signature, const float* partial, void* out,
                                   int64_t n, bool out_f32) {
  static_assert(kSlicedFrom * sizeof(float) <= shm::kChunkBytes);
  if (n > 0)
    std::memcpy(chunk(rank_, meetings_ + 1), partial, static_cast<size_t>(n) * sizeof(float));
  meet(signature);
  const float* part[8];
  for (int m = 0; m < size(); ++m) part[m] = reinterpret_cast<const float*>(chunk(m, meetings_));
  out_f32 ? tree_f32(part, size(), static_cast<float*>(out), n)
          : tree_bf16(part, size(), static_cast<bf16*>(out), n);
}

// Each member adds its slice of a chunk and shares the sums at the next meeting, where the next
// chunk's partials are handed over too: chunks + 1 meetings.
void ShmCommunicator::reduce_sliced(const Signature& signature, const float* partial, void* out,
                                    int64_t n, bool out_f32) {
  constexpr int64_t kChunk = shm::kChunkBytes / sizeof(float);
  const size_t out_size = out_f32 ? sizeof(float) : sizeof(bf16);
  const auto slice_begin = [&](int64_t part, int m) { return part * m / size(); };

  for (int64_t at = 0, shared = 0;; at += kChunk) {
    // Here [0, at) has been handed over and [shared, at) reduced into the members' result slices of
    // the next meeting.
    const int64_t part = std::min(kChunk, std::max<int64_t>(n - at, 0));
    if (part > 0)
      std::memcpy(chunk(rank_, meetings_ + 1), partial + at,
                  static_cast<size_t>(part) * sizeof(float));
    meet(signature);
    for (int m = 0; m < size() && shared < at; ++m) {
      const int64_t length = std::min(kChunk, n - shared);
      const int64_t first = slice_begin(length, m), last = slice_begin(length, m + 1);
      std::memcpy(static_cast<char*>(out) + static_cast<size_t>(shared + first) * out_size,
                  result(m, meetings_), static_cast<size_t>(last - first) * out_size);
    }
    shared = std::min(at, n);
    if (part == 0) return;
    const int64_t first = slice_begin(part, rank_), last = slice_begin(part, rank_ + 1);
    const float* slice[8];
    for (int m = 0; m < size(); ++m)
      slice[m] = reinterpret_cast<const float*>(chunk(m, meetings_)) + first;
    char* sums = result(rank_, meetings_ + 1);
    out_f32 ? tree_f32(slice, size(), reinterpret_cast<float*>(sums), last - first)
            : tree_bf16(slice, size(), reinterpret_cast<bf16*>(sums), last - first);
  }
}

void* ShmCommunicator::peer(int member, const void* mine) const {
  RLK_CHECK(member >= 0 && member < size(), member, size());
  const char* arena = view_.arena(view_.rank);
  const auto* here = static_cast<const char*>(mine);
  RLK_CHECK(here >= arena && here < arena + view_.control->arena_bytes, mine,
            view_.control->arena_bytes);
  return view_.arena(members_[static_cast<size_t>(member)]) + (here - arena);
}

std::string ShmCommunicator::describe(const Signature& s) const {
  std::string text = std::string(kind_name(s.kind)) + " #" + std::to_string(s.sequence) +
                     " of group " + name_ + ", " + std::to_string(s.bytes) + " bytes";
  if (s.kind == Kind::broadcast) text += ", root " + std::to_string(s.detail);
  if (s.kind == Kind::tree_reduce) text += s.detail ? ", fp32" : ", bf16";
  return text;
}

std::string ShmCommunicator::place(const Signature& s) const {
  return "rank " + std::to_string(view_.rank) + ": " + describe(s);
}

std::string ShmCommunicator::absent_members() const {
  std::string text;
  for (int m = 0; m < size(); ++m) {
    if (group_->member[m].meetings.load(std::memory_order_acquire) == meetings_) continue;
    const int world_rank = members_[static_cast<size_t>(m)];
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(world_rank) + " (" +
            last_seen(world_rank) + ")";
  }
  return text.empty() ? "the last member's signal (it died while giving it)" : text;
}

std::string ShmCommunicator::last_seen(int world_rank) const {
  const uint64_t word = view_.control->rank[world_rank].last_call.load(std::memory_order_relaxed);
  const auto kind = static_cast<Kind>(word >> 56);
  if (kind == Kind::none) return "never seen";
  const shm::Group& group = view_.control->group[(word >> 48) & 0xff];
  return "last seen in " + std::string(kind_name(kind)) + " #" +
         std::to_string(word & ((uint64_t{1} << 48) - 1)) + " of group " + group.name;
}

}  // namespace rlk
