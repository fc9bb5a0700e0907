// Collectives of CUDA ranks. Each test forks its ranks (the parent never touches CUDA); rank r runs
// on device r mod devices, so all layouts run on one GPU too (under MPS at speed). A rank's failure
// is its exit code and its words on stderr.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/common/check.h"
#include "rlk/comm/native_sum.h"
#include "rlk/comm/world.h"
#include "rlk/device/ops.h"

namespace rlk {
namespace {

using namespace std::chrono_literals;

int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

template <class Body>
pid_t start(const Body& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  int code = 1;
  try {
    body();
    code = 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::fflush(nullptr);
  _exit(code);
}

int device_count() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  return exit_code_of(child);
}

void expect(bool ok, const std::string& what) {
  if (!ok) throw Error(what);
}

// What a test's ranks work with.
struct Rank {
  const Ops& ops;
  World& world;
  Communicator& host;
  Stream stream;
  int rank, size;

  template <class T>
  T* array(int64_t n) const {
    return static_cast<T*>(ops.alloc(static_cast<size_t>(n) * sizeof(T)));
  }
  template <class T>
  void set(T* to, const std::vector<T>& from) const {
    ops.copy(stream, to, from.data(), from.size() * sizeof(T));
    ops.synchronize(stream);
  }
  template <class T>
  std::vector<T> get(const T* from, int64_t n) const {
    std::vector<T> out(static_cast<size_t>(n));
    ops.copy(stream, out.data(), from, out.size() * sizeof(T));
    ops.synchronize(stream);
    return out;
  }
  std::vector<int> everyone() const {
    std::vector<int> all(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) all[static_cast<size_t>(r)] = r;
    return all;
  }
};

class Ipc : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = device_count();
    if (devices_ > 0) return;
    if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set, and no device";
    GTEST_SKIP() << "no CUDA device";
  }

  // Runs `body` on `ranks` ranks and returns their exit codes.
  std::vector<int> codes(int ranks, std::chrono::milliseconds timeout,
                         const std::function<void(const Rank&)>& body) {
    const int fd = shm_world_create(ranks, 1 << 20);
    std::vector<pid_t> children;
    for (int r = 0; r < ranks; ++r) {
      children.push_back(start([&] {
        const auto host = shm_world_open(fd, r, 60s);
        const Ops& ops = cuda_ops(r % devices_);
        const Stream stream = ops.stream_create();
        const auto world = ipc_world_open(*host, size_t{64} << 20, timeout);
        std::vector<int> everyone(static_cast<size_t>(ranks));
        for (int i = 0; i < ranks; ++i) everyone[static_cast<size_t>(i)] = i;
        const auto meeting = host->group(everyone, "test");
        body({ops, *world, *meeting, stream, r, ranks});
        meeting->barrier(nullptr);
      }));
    }
    std::vector<int> all;
    for (pid_t child : children) all.push_back(exit_code_of(child));
    close(fd);
    return all;
  }

  void all_pass(int ranks, const std::function<void(const Rank&)>& body) {
    EXPECT_EQ(codes(ranks, 60s, body), std::vector<int>(static_cast<size_t>(ranks), 0));
  }

  int devices_ = 0;
};

uint8_t byte_of(int rank, size_t i, int round) {
  return static_cast<uint8_t>(i * 131 + static_cast<size_t>(rank) * 17 +
                              static_cast<size_t>(round) * 29 + 7);
}

float value_of(int rank, size_t i, int round) {
  const uint32_t mixed = static_cast<uint32_t>(
      mix64(i * 8 + static_cast<size_t>(rank) + static_cast<size_t>(round) * 977));
  return static_cast<float>(static_cast<int32_t>(mixed)) * 0x1p-28f;
}

float tree(const float* p, int n) {
  return n == 1 ? p[0] : tree(p, n / 2) + tree(p + n / 2, n / 2);
}

void gathers(const Rank& r) {
  const auto group = r.world.group(r.everyone(), "all");
  for (size_t bytes : {1ul, 4ul, 12ul, 16ul, 4096ul, 65536ul, 65540ul, 3000000ul}) {
    auto* in = r.array<uint8_t>(static_cast<int64_t>(bytes));
    auto* out = r.array<uint8_t>(static_cast<int64_t>(bytes) * r.size);
    for (int round = 0; round < 3; ++round) {
      std::vector<uint8_t> mine(bytes);
      for (size_t i = 0; i < bytes; ++i) mine[i] = byte_of(r.rank, i, round);
      r.set(in, mine);
      group->all_gather(r.stream, in, out, bytes);
      const auto got = r.get(out, static_cast<int64_t>(bytes) * r.size);
      for (int m = 0; m < r.size; ++m)
        for (size_t i = 0; i < bytes; ++i)
          expect(got[static_cast<size_t>(m) * bytes + i] == byte_of(m, i, round),
                 "all_gather of " + std::to_string(bytes) + ": byte " + std::to_string(i) + " of " +
                     std::to_string(m));
    }
    const int root = r.size - 1;
    group->broadcast(r.stream, in, bytes, root);
    const auto got = r.get(in, static_cast<int64_t>(bytes));
    for (size_t i = 0; i < bytes; ++i)
      expect(got[i] == byte_of(root, i, 2), "broadcast of " + std::to_string(bytes));
  }
}

void reductions(const Rank& r) {
  const auto group = r.world.group(r.everyone(), "all");
  int round = 0;
  for (int64_t n : {1, 5, 1000, 16384, 16385, 100003, 1 << 20}) {
    auto* partial = r.array<float>(n);
    auto* f32 = r.array<float>(n);
    auto* half = r.array<bf16>(n);
    std::vector<float> mine(static_cast<size_t>(n)), want(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      float part[8];
      for (int m = 0; m < r.size; ++m) part[m] = value_of(m, i, round);
      mine[i] = part[r.rank];
      want[i] = tree(part, r.size);
    }
    r.set(partial, mine);
    group->tree_reduce(r.stream, partial, f32, n, true);
    group->tree_reduce(r.stream, partial, half, n, false);
    group->tree_reduce(r.stream, partial, partial, n, true);
    const auto got = r.get(f32, n), in_place = r.get(partial, n);
    const auto rounded = r.get(half, n);
    const std::string what = "tree_reduce of " + std::to_string(n);
    expect(std::memcmp(got.data(), want.data(), want.size() * 4) == 0, what);
    expect(std::memcmp(in_place.data(), want.data(), want.size() * 4) == 0, what + " in place");
    for (size_t i = 0; i < want.size(); ++i)
      expect(rounded[i] == to_bf16(want[i]), what + " to bf16: element " + std::to_string(i));
    ++round;
  }
}

// Replayed graphs: inputs change between replays, meeting numbers go on by themselves.
void graphs(const Rank& r) {
  const auto group = r.world.group(r.everyone(), "all");
  constexpr int64_t kN = 4096;
  auto* partial = r.array<float>(kN);
  auto* sum = r.array<float>(kN);
  auto* all = r.array<float>(kN * r.size);
  r.ops.capture_begin(r.stream);
  for (int i = 0; i < 3; ++i) {
    group->tree_reduce(r.stream, partial, sum, kN, true);
    group->barrier(r.stream);
    group->all_gather(r.stream, sum, all, kN * 4);
  }
  const Graph graph = r.ops.capture_end(r.stream);
  for (int round = 0; round < 5; ++round) {
    std::vector<float> mine(kN);
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = value_of(r.rank, i, round);
    r.set(partial, mine);
    r.ops.graph_launch(r.stream, graph);
    const auto got = r.get(all, kN * r.size);
    for (size_t i = 0; i < got.size(); ++i) {
      float part[8];
      for (int m = 0; m < r.size; ++m) part[m] = value_of(m, i % kN, round);
      expect(got[i] == tree(part, r.size),
             "replay " + std::to_string(round) + ": element " + std::to_string(i));
    }
  }
  r.ops.graph_destroy(graph);
}

void pairs_and_peers(const Rank& r) {
  const auto everyone = r.world.group(r.everyone(), "all");
  const int first = r.rank / 2 * 2;
  const auto pair = r.world.group({first, first + 1}, "pair");
  auto* shared = static_cast<float*>(r.world.arena_alloc(1024));
  r.set(shared, std::vector<float>(256, static_cast<float>(r.rank)));
  everyone->barrier(r.stream);
  for (int m = 0; m < r.size; ++m)
    expect(r.get(static_cast<const float*>(everyone->peer(m, shared)), 256)[255] ==
               static_cast<float>(m),
           "peer");
  auto* out = r.array<float>(512);
  pair->all_gather(r.stream, shared, out, 1024);
  const auto got = r.get(out, 512);
  expect(got[0] == static_cast<float>(first) && got[256] == static_cast<float>(first + 1),
         "pair gather");
  everyone->barrier(r.stream);
  r.ops.synchronize(r.stream);
}

void nccl_sums(const Rank& r) {
  const auto group = r.world.group(r.everyone(), "all");
  const auto sum = nccl_sum(r.host);
  for (int64_t n : {1, 1000, 1 << 20}) {
    std::vector<float> mine(static_cast<size_t>(n));
    std::vector<bf16> half(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = value_of(r.rank, i, 0);
    for (size_t i = 0; i < mine.size(); ++i) half[i] = to_bf16(mine[i]);
    auto* f32 = r.array<float>(n);
    auto* b16 = r.array<bf16>(n);
    r.set(f32, mine);
    r.set(b16, half);
    r.ops.synchronize(r.stream);
    r.ops.capture_begin(r.stream);
    sum->add(r.stream, f32, n);
    sum->add(r.stream, b16, n);
    const Graph graph = r.ops.capture_end(r.stream);
    r.ops.graph_launch(r.stream, graph);
    const auto got = r.get(f32, n);
    const auto rounded = r.get(b16, n);
    for (size_t i = 0; i < got.size(); ++i) {  // two addends: any order
      expect(got[i] == value_of(0, i, 0) + value_of(1, i, 0), "f32 " + std::to_string(i));
      expect(rounded[i] == to_bf16(to_float(to_bf16(value_of(0, i, 0))) +
                                   to_float(to_bf16(value_of(1, i, 0)))),
             "bf16 " + std::to_string(i));
    }
    r.ops.graph_destroy(graph);
  }
}

TEST_F(Ipc, TwoRanksGatherAndBroadcast) {
  all_pass(2, gathers);
}
TEST_F(Ipc, EightRanksGatherAndBroadcast) {
  all_pass(8, gathers);
}
TEST_F(Ipc, TwoRanksReduceByTheTree) {
  all_pass(2, reductions);
}
TEST_F(Ipc, FourRanksReduceByTheTree) {
  all_pass(4, reductions);
}
TEST_F(Ipc, EightRanksReduceByTheTree) {
  all_pass(8, reductions);
}
TEST_F(Ipc, CapturedCollectivesReplay) {
  all_pass(8, graphs);
}
// NCCL wants a device a rank.
TEST_F(Ipc, NcclSumsInPlaceAndInReplayedGraphs) {
  if (devices_ < 2) GTEST_SKIP() << devices_ << " CUDA device, NCCL needs two";
  all_pass(2, nccl_sums);
}

TEST_F(Ipc, GroupsAreIndependentAndPeersReadable) {
  all_pass(4, pairs_and_peers);
}

// The message that synchronize throws on `rank`, "" when it does not throw.
std::string message(const Rank& r) {
  try {
    r.ops.synchronize(r.stream);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_F(Ipc, AnAbsentMemberIsNamed) {
  const auto all = codes(2, 500ms, [](const Rank& r) {
    const auto group = r.world.group(r.everyone(), "all");
    if (r.rank == 1) return;
    group->barrier(r.stream);
    const std::string text = message(r);
    expect(text.find("rank 0") != std::string::npos && text.find("barrier") != std::string::npos &&
               text.find("no arrival in time of rank 1") != std::string::npos,
           "message: " + text);
  });
  EXPECT_EQ(all, std::vector<int>({0, 0}));
}

// A rank that leaves in the middle must not leave the others spinning on the device.
TEST_F(Ipc, AnAbortEndsDeviceWaitsAtOnce) {
  const auto all = codes(2, 60s, [](const Rank& r) {
    const auto group = r.world.group(r.everyone(), "all");
    if (r.rank == 1) {
      std::this_thread::sleep_for(200ms);
      return r.world.abort("rank 1 has enough");
    }
    const auto start = std::chrono::steady_clock::now();
    group->barrier(r.stream);
    const std::string text = message(r);
    expect(text.find("rank 0: run aborted") != std::string::npos, "message: " + text);
    expect(std::chrono::steady_clock::now() - start < 2s, "the wait took longer");
    std::_Exit(0);  // the meeting at the end is aborted as well
  });
  EXPECT_EQ(all, std::vector<int>({0, 1}));
}

TEST_F(Ipc, DifferentCollectivesAreNamed) {
  const auto all = codes(2, 5s, [](const Rank& r) {
    const auto group = r.world.group(r.everyone(), "all");
    auto* data = r.array<uint8_t>(4096);
    group->all_gather(r.stream, data, data + 1024, r.rank == 0 ? 64 : 128);
    const std::string text = message(r);
    expect(text.find("does not match rank") != std::string::npos, "message: " + text);
  });
  EXPECT_EQ(all, std::vector<int>({0, 0}));
}

// Not a claim, so disabled: prints microseconds a collective in a graph of 50 (10 for the largest),
// median of 15 replays.
void timings(const Rank& r) {
  const auto group = r.world.group(r.everyone(), "all");
  constexpr int64_t kMost = 8 << 20;
  auto* in = r.array<float>(kMost / 4);
  auto* out = r.array<float>(kMost / 4 * r.size);
  const auto time = [&](const char* name, size_t bytes, int runs,
                        const std::function<void()>& call) {
    r.ops.capture_begin(r.stream);
    for (int i = 0; i < runs; ++i) call();
    const Graph graph = r.ops.capture_end(r.stream);
    std::vector<double> us;
    for (int i = 0; i < 15; ++i) {
      group->barrier(r.stream);
      r.ops.synchronize(r.stream);
      const auto begin = std::chrono::steady_clock::now();
      r.ops.graph_launch(r.stream, graph);
      r.ops.synchronize(r.stream);
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count() /
          runs);
    }
    r.ops.graph_destroy(graph);
    std::nth_element(us.begin(), us.begin() + 7, us.end());
    if (r.rank == 0)
      std::printf("ranks %d %-12s %8zu bytes %8.2f us\n", r.size, name, bytes, us[7]);
  };
  time("barrier", 0, 50, [&] { group->barrier(r.stream); });
  for (size_t bytes : {size_t{8} << 10, size_t{64} << 10, size_t{1} << 20, size_t{8} << 20}) {
    const int runs = bytes > (1 << 20) ? 10 : 50;
    time("all_gather", bytes, runs, [&] { group->all_gather(r.stream, in, out, bytes); });
    time("tree_reduce", bytes, runs,
         [&] { group->tree_reduce(r.stream, in, out, static_cast<int64_t>(bytes / 4), false); });
  }
}

TEST_F(Ipc, DISABLED_TwoRankTimings) {
  all_pass(2, timings);
}
TEST_F(Ipc, DISABLED_EightRankTimings) {
  all_pass(8, timings);
}

}  // namespace
}  // namespace rlk
