// World and communicators of CUDA ranks on one host: memory over CUDA IPC, meetings by
// kernels/collective.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "ipc_memory.h"
#include "kernels/collective/collective.h"
#include "kernels/common/check.h"
#include "kernels/launchers.h"
#include "rlk/comm/world.h"

namespace rlk {
namespace {

using cuda::GroupView;
using cuda::WaitFailure;

// The process's failure record and the names of its groups: one world a process.
struct FailureLog {
  WaitFailure* record = nullptr;  // page-locked; the device writes it
  int rank = 0;
  std::vector<std::string> group;
  std::vector<std::vector<int>> members;
};
FailureLog failure_log;

const char* kind_name(uint32_t kind) {
  switch (static_cast<cuda::Collective>(kind)) {
    case cuda::Collective::barrier:
      return "barrier";
    case cuda::Collective::all_gather:
      return "all_gather";
    case cuda::Collective::tree_reduce:
      return "tree_reduce";
    case cuda::Collective::broadcast:
      return "broadcast";
  }
  return "nothing";
}

// A signature's words: kernels/collective/collective.cu packs kind, variant and size in 16-byte
// units.
std::string describe(uint32_t signature) {
  return std::string(kind_name(signature >> 28)) + " of " +
         std::to_string((signature & 0xffffffu) * 16) + " bytes (variant " +
         std::to_string(signature >> 24 & 0xf) + ")";
}

std::string read_failure() {
  if (failure_log.record == nullptr) return "";
  const auto* set = static_cast<volatile uint32_t*>(&failure_log.record->set);
  if (*set == 0) return "";
  while (*set == 3) {  // the device is writing the rest
  }
  const WaitFailure& f = *failure_log.record;
  if (f.set == cuda::kAborted)
    return "rank " + std::to_string(failure_log.rank) + ": run aborted, device waits given up";
  const int member = failure_log.members[f.group][f.member];
  const std::string place = "rank " + std::to_string(failure_log.rank) + ": " +
                            describe(f.signature) + ", meeting " + std::to_string(f.meeting) +
                            " of lane " + std::to_string(f.lane) + " of group " +
                            failure_log.group[f.group];
  if (f.set == 2)
    return place + ": does not match rank " + std::to_string(member) + ": " +
           describe(f.seen_signature);
  return place + ": no arrival in time of rank " + std::to_string(member) +
         " (last seen at meeting " + std::to_string(f.seen_meeting) + ")";
}

class IpcCommunicator final : public Communicator {
 public:
  // arena [i]: member i's arena as mapped here.
  IpcCommunicator(std::unique_ptr<Communicator> host, std::vector<char*> arena, size_t arena_bytes,
                  uint64_t timeout_ns, int lanes)
      : Communicator(host->rank(), host->members()),
        host_(std::move(host)),
        memory_(*host_, cuda::group_memory_bytes(size(), lanes)),
        arena_(std::move(arena)),
        arena_bytes_(arena_bytes) {
    view_.rank = rank_;
    view_.size = size();
    view_.lanes = lanes;
    for (int m = 0; m < size(); ++m)
      view_.memory[m] = static_cast<cuda::GroupMemory*>(memory_.of(m));
    view_.id = static_cast<uint32_t>(failure_log.group.size() - 1);
    view_.failure = failure_log.record;
    view_.deadline_ns = timeout_ns;
  }

  void barrier(Stream stream) override {
    if (size() > 1) cuda::collective_barrier(stream, view_);
  }

  void meet() override { host_->barrier(nullptr); }

  void all_gather(Stream stream, const void* in, void* out, size_t bytes) override {
    if (size() > 1) return cuda::collective_all_gather(stream, view_, in, out, bytes);
    if (in != out) copy(stream, out, in, bytes);
  }

  void tree_reduce(Stream stream, const float* partial, void* out, int64_t n,
                   bool out_f32) override {
    if (size() > 1) return cuda::collective_tree_reduce(stream, view_, partial, out, n, out_f32);
    if (!out_f32)
      cuda::cast(stream, {partial, static_cast<bf16*>(out), n});
    else if (partial != out)
      copy(stream, out, partial, static_cast<size_t>(n) * sizeof(float));
  }

  void broadcast(Stream stream, void* data, size_t bytes, int root) override {
    RLK_CHECK(root >= 0 && root < size(), root, size());
    if (size() > 1) cuda::collective_broadcast(stream, view_, data, bytes, root);
  }

  void* peer(int member, const void* mine) const override {
    const char* arena = arena_[static_cast<size_t>(rank_)];
    const auto* here = static_cast<const char*>(mine);
    RLK_CHECK(here >= arena && here < arena + arena_bytes_, mine, arena_bytes_);
    return arena_[static_cast<size_t>(member)] + (here - arena);
  }

 private:
  static void copy(Stream stream, void* to, const void* from, size_t bytes) {
    if (bytes > 0)
      cuda::check(
          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::stream_of(stream)),
          "cudaMemcpyAsync");
  }

  std::unique_ptr<Communicator> host_;
  IpcMemory memory_;
  std::vector<char*> arena_;
  size_t arena_bytes_;
  GroupView view_{};
};

class IpcWorld final : public World {
 public:
  IpcWorld(World& host, size_t arena_bytes, std::chrono::milliseconds timeout)
      : World(host.rank(), host.size()),
        host_(host),
        everyone_(host.group(all_ranks(host.size()), "ipc")),
        arena_(*everyone_, arena_bytes),
        timeout_(timeout),
        lanes_(lanes_for(most_ranks_on_a_gpu(*everyone_))) {
    RLK_CHECK(failure_log.record == nullptr, "one world of CUDA ranks a process");
    void* record = nullptr;
    cuda::check(cudaHostAlloc(&record, sizeof(WaitFailure), cudaHostAllocMapped), "cudaHostAlloc");
    std::memset(record, 0, sizeof(WaitFailure));
    failure_log = {static_cast<WaitFailure*>(record), rank_, {}, {}};
    cuda::collective_failure = read_failure;
    watcher_ = std::thread([this] { watch(); });
  }

  ~IpcWorld() override {
    leaving_ = true;
    watcher_.join();
    cuda::collective_failure = nullptr;
    (void)cudaFreeHost(failure_log.record);
    failure_log = {};
  }

  void* arena_alloc(size_t bytes) override {
    const size_t aligned = (bytes + 255) / 256 * 256;
    if (aligned < bytes || aligned > arena_.bytes() - used_)
      throw Error("rank " + std::to_string(rank_) +
                  ": shared device arena is full: " + std::to_string(bytes) + " bytes asked for, " +
                  std::to_string(arena_.bytes() - used_) + " of " + std::to_string(arena_.bytes()) +
                  " left");
    void* here = static_cast<char*>(arena_.mine()) + used_;
    used_ += aligned;
    return here;
  }

  std::unique_ptr<Communicator> group(const std::vector<int>& members,
                                      const std::string& name) override {
    const size_t n = members.size();
    RLK_CHECK(n == 1 || n == 2 || n == 4 || n == 8, name, n);
    std::unique_ptr<Communicator> meeting = host_.group(members, "ipc " + name);
    failure_log.group.push_back(name);
    failure_log.members.push_back(members);
    std::vector<char*> arena;
    for (int m : members) arena.push_back(static_cast<char*>(arena_.of(m)));
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout_).count();
    return std::make_unique<IpcCommunicator>(std::move(meeting), std::move(arena), arena_.bytes(),
                                             static_cast<uint64_t>(ns), lanes_);
  }

  void abort(const std::string& reason) override { host_.abort(reason); }
  std::string abort_reason() const override { return host_.abort_reason(); }

 private:
  // Kernels that wait know nothing of the host's abort flag: they end when a failure is recorded.
  void watch() {
    using namespace std::chrono_literals;
    for (; !leaving_; std::this_thread::sleep_for(20ms)) {
      if (host_.abort_reason().empty()) continue;
      uint32_t none = 0;
      __atomic_compare_exchange_n(&failure_log.record->set, &none, cuda::kAborted, false,
                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
      return;
    }
  }

  static std::vector<int> all_ranks(int size) {
    std::vector<int> all(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) all[static_cast<size_t>(r)] = r;
    return all;
  }

  // Blocks that wait hold their multiprocessor's registers. Where ranks share a GPU, the blocks of
  // all waiting ranks together must leave multiprocessors on which the one they wait for can run a
  // kernel that needs a whole one.
  static int most_ranks_on_a_gpu(Communicator& everyone) {
    int device = 0;
    cudaDeviceProp own{};
    cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    cuda::check(cudaGetDeviceProperties(&own, device), "cudaGetDeviceProperties");
    std::vector<cudaUUID_t> ids(static_cast<size_t>(everyone.size()));
    everyone.all_gather(nullptr, &own.uuid, ids.data(), sizeof own.uuid);
    int most = 0;
    for (const cudaUUID_t& id : ids)
      most = std::max(
          most, static_cast<int>(std::count_if(ids.begin(), ids.end(), [&](const auto& other) {
            return std::memcmp(&id, &other, sizeof id) == 0;
          })));
    return most;
  }

  static int lanes_for(int ranks_on_a_gpu) {
    if (ranks_on_a_gpu == 1) return cuda::kMaxLanes;
    return std::max(1, cuda::kSharedLanes / ranks_on_a_gpu);
  }

  World& host_;
  std::unique_ptr<Communicator> everyone_;
  IpcMemory arena_;
  std::chrono::milliseconds timeout_;
  int lanes_;
  size_t used_ = 0;
  std::atomic<bool> leaving_ = false;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<World> ipc_world_open(World& host, size_t arena_bytes,
                                      std::chrono::milliseconds timeout) {
  return std::make_unique<IpcWorld>(host, arena_bytes, timeout);
}

}  // namespace rlk
