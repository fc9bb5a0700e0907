// Collectives of a ShmWorld against naive references, in 1 to 8 processes.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "comm/fork_ranks.h"
#include "rlk/base/bf16.h"
#include "rlk/base/trace_hash.h"

namespace rlk {
namespace {

using test::milliseconds;
using test::Ranks;

constexpr milliseconds kTimeout{30'000};
constexpr int64_t kChunkFloats =
    64 << 10;  // a staging chunk; sizes around it and its multiples are the edges

// Rank's fp32 data: magnitudes from 2^-12 to 2^12, so that association shows in the bits.
std::vector<float> data_of(int rank, int64_t n, uint32_t seed) {
  std::minstd_rand random(seed * 64 + static_cast<uint32_t>(rank) + 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) {
    const int exponent = static_cast<int>(random() % 25) - 12;
    v = std::ldexp(static_cast<float>(static_cast<int>(random() % 65536) - 32768) / 32768.0f,
                   exponent);
  }
  return x;
}

// Pairs of neighbours, until one is left.
std::vector<float> tree_of(std::vector<std::vector<float>> parts) {
  while (parts.size() > 1) {
    std::vector<std::vector<float>> sums;
    for (size_t p = 0; p < parts.size(); p += 2) {
      sums.push_back(parts[p]);
      for (size_t i = 0; i < parts[p].size(); ++i) sums.back()[i] = parts[p][i] + parts[p + 1][i];
    }
    parts = std::move(sums);
  }
  return parts[0];
}

// "" or the first difference, in hex.
template <class T>
std::string difference(const T* got, const T* want, int64_t n, const std::string& what) {
  for (int64_t i = 0; i < n; ++i) {
    if (std::memcmp(got + i, want + i, sizeof(T)) == 0) continue;
    uint32_t a = 0, b = 0;
    std::memcpy(&a, got + i, sizeof(T));
    std::memcpy(&b, want + i, sizeof(T));
    std::ostringstream out;
    out << what << ", index " << i << " of " << n << ": got 0x" << std::hex << a << ", want 0x"
        << b;
    return out.str();
  }
  return "";
}

void expect_silence(Ranks& ranks, const std::string& what) {
  int rank = 0;
  for (const auto& end : ranks.collect()) {
    EXPECT_EQ(end.status, 0) << what << ", rank " << rank;
    EXPECT_EQ(end.text, "") << what << ", rank " << rank;
    ++rank;
  }
}

std::vector<int> iota(int n) {
  std::vector<int> v(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) v[static_cast<size_t>(i)] = i;
  return v;
}

std::string check_gather(Communicator& comm, int64_t bytes, bool in_place, uint32_t seed) {
  const auto contents = [&](int world_rank) {
    std::string s(static_cast<size_t>(bytes), '\0');
    std::minstd_rand random(seed * 64 + static_cast<uint32_t>(world_rank) + 1);
    for (char& c : s) c = static_cast<char>(random() >> 8);
    return s;
  };
  const std::string mine = contents(comm.members()[static_cast<size_t>(comm.rank())]);
  std::string want, got(static_cast<size_t>(bytes * comm.size()) + 8, '\x5a');
  for (int member : comm.members()) want += contents(member);
  want += std::string(8, '\x5a');  // guard
  char* own = got.data() + comm.rank() * bytes;
  if (in_place) std::memcpy(own, mine.data(), mine.size());
  comm.all_gather(nullptr, in_place ? own : mine.data(), got.data(), static_cast<size_t>(bytes));
  return difference(got.data(), want.data(), static_cast<int64_t>(want.size()),
                    "all_gather of " + std::to_string(bytes));
}

std::string check_reduce(Communicator& comm, int64_t n, bool out_f32, bool aliased, uint32_t seed) {
  std::vector<std::vector<float>> parts;
  for (int member : comm.members()) parts.push_back(data_of(member, n, seed));
  const std::vector<float> want = tree_of(parts);
  std::vector<float> mine = parts[static_cast<size_t>(comm.rank())];
  const std::string what = "tree_reduce of " + std::to_string(n) + (out_f32 ? " f32" : " bf16");
  if (out_f32) {
    std::vector<float> out(static_cast<size_t>(n) + 1, -7.0f);
    out.back() = -7.0f;
    float* to = aliased ? mine.data() : out.data();
    comm.tree_reduce(nullptr, mine.data(), to, n, true);
    if (out.back() != -7.0f) return what + ": wrote past its end";
    return difference(to, want.data(), n, what);
  }
  std::vector<bf16> out(static_cast<size_t>(n) + 1, bf16{0x5a5a}), rounded;
  for (float x : want) rounded.push_back(to_bf16(x));
  comm.tree_reduce(nullptr, mine.data(), out.data(), n, false);
  if (out.back().bits != 0x5a5a) return what + ": wrote past its end";
  return difference(out.data(), rounded.data(), n, what);
}

std::string check_broadcast(Communicator& comm, int64_t bytes, int root, uint32_t seed) {
  std::string want(static_cast<size_t>(bytes), '\0');
  std::minstd_rand random(seed + 1);
  for (char& c : want) c = static_cast<char>(random() >> 8);
  std::string got = comm.rank() == root ? want : std::string(want.size(), '\x5a');
  comm.broadcast(nullptr, got.data(), want.size(), root);
  return difference(got.data(), want.data(), bytes, "broadcast of " + std::to_string(bytes));
}

const std::vector<int64_t> kReduceSizes = {0,
                                           1,
                                           7,
                                           8,
                                           1000,
                                           4095,
                                           4096,
                                           8191,
                                           8192,
                                           8193,
                                           9999,
                                           kChunkFloats - 1,
                                           kChunkFloats,
                                           kChunkFloats + 1,
                                           2 * kChunkFloats,
                                           3 * kChunkFloats + 17};

TEST(Collectives, AllGatherEqualsReferenceForEverySize) {
  const int64_t chunk = kChunkFloats * 4;
  for (int size : {1, 2, 3, 5, 8}) {
    Ranks ranks(size, 0, kTimeout, [&](World& world) {
      auto comm = world.group(iota(world.size()), "world");
      for (int64_t bytes :
           {int64_t{0}, int64_t{1}, int64_t{4096}, chunk - 1, chunk, chunk + 1, 3 * chunk + 5})
        for (bool in_place : {false, true}) {
          const std::string diff =
              check_gather(*comm, bytes, in_place, static_cast<uint32_t>(bytes));
          if (!diff.empty()) return diff;
        }
      return std::string();
    });
    expect_silence(ranks, std::to_string(size) + " ranks");
  }
}

TEST(Collectives, TreeReduceEqualsAlignedTreeForEverySize) {
  for (int size : {1, 2, 4, 8}) {
    Ranks ranks(size, 0, kTimeout, [&](World& world) {
      auto comm = world.group(iota(world.size()), "world");
      for (int64_t n : kReduceSizes)
        for (auto [f32, aliased] : {std::pair{true, false}, {true, true}, {false, false}}) {
          const std::string diff = check_reduce(*comm, n, f32, aliased, static_cast<uint32_t>(n));
          if (!diff.empty()) return diff;
        }
      return std::string();
    });
    expect_silence(ranks, std::to_string(size) + " ranks");
  }
}

// The reference can tell orders apart: a sequential sum of the same data differs from the tree.
TEST(Collectives, ReferenceTreeDiffersFromSequentialSum) {
  int different = 0;
  std::vector<std::vector<float>> parts;
  for (int r = 0; r < 8; ++r) parts.push_back(data_of(r, 1000, 5));
  const std::vector<float> tree = tree_of(parts);
  for (size_t i = 0; i < 1000; ++i) {
    float sum = 0;
    for (const auto& p : parts) sum += p[i];
    different += sum != tree[i];
  }
  EXPECT_GT(different, 100);
}

// R1: a group of any size that holds subtrees of the same 8 leaves gives the same bits.
TEST(Collectives, TreeReduceOfSubtreesGivesSameBitsForEveryGroupSize) {
  const int64_t n = kChunkFloats + 100;
  std::vector<std::string> hashes;
  for (int size : {1, 2, 4, 8}) {
    Ranks ranks(size, 0, kTimeout, [&](World& world) {
      auto comm = world.group(iota(world.size()), "world");
      const int each = 8 / world.size();
      std::vector<std::vector<float>> leaves;
      for (int v = 0; v < each; ++v) leaves.push_back(data_of(world.rank() * each + v, n, 3));
      const std::vector<float> partial = tree_of(leaves);
      std::vector<float> out(partial.size());
      comm->tree_reduce(nullptr, partial.data(), out.data(), n, true);
      return std::to_string(hash_bytes(out.data(), out.size() * sizeof(float), 0));
    });
    for (const auto& end : ranks.collect()) hashes.push_back(end.text);
  }
  for (const auto& hash : hashes) EXPECT_EQ(hash, hashes[0]);
}

TEST(Collectives, BroadcastReachesAllFromEveryRoot) {
  Ranks ranks(4, 0, kTimeout, [&](World& world) {
    auto comm = world.group(iota(4), "world");
    for (int root = 0; root < 4; ++root)
      for (int64_t bytes : {0, 1, 5000, 262144, 262145, 1000000}) {
        const std::string diff =
            check_broadcast(*comm, bytes, root, static_cast<uint32_t>(bytes + root));
        if (!diff.empty()) return diff;
      }
    return std::string();
  });
  expect_silence(ranks, "broadcast");
}

// World, two tp halves, four cp pairs and two strided groups live at once; all ranks draw the same
// sequence of calls, with a rank now and then asleep. Twice, for run to run bits.
TEST(Collectives, RandomInterleavingsOverSeveralGroups) {
  const auto body = [](World& world) {
    const int r = world.rank();
    std::vector<std::unique_ptr<Communicator>> groups;
    groups.push_back(world.group(iota(8), "world"));
    groups.push_back(world.group(r < 4 ? std::vector{0, 1, 2, 3} : std::vector{4, 5, 6, 7}, "tp"));
    groups.push_back(world.group({r % 4, r % 4 + 4}, "cp"));
    groups.push_back(
        world.group(r % 2 ? std::vector{1, 3, 5, 7} : std::vector{0, 2, 4, 6}, "engine"));
    groups.push_back(world.group(iota(8), "world"));  // a second instance is a group of its own
    std::minstd_rand shared(99), own(static_cast<uint32_t>(r) + 1);
    for (uint32_t call = 0; call < 200; ++call) {
      auto& comm = *groups[shared() % groups.size()];
      const auto kind = shared() % 4;
      const auto size =
          static_cast<int64_t>(shared() % 8 == 0 ? shared() % 100000 : shared() % 3000);
      const bool flag = shared() % 2;
      if (own() % 64 == 0) usleep(static_cast<useconds_t>(own() % 2000));
      std::string diff;
      if (kind == 0) comm.barrier(nullptr);
      if (kind == 1) diff = check_gather(comm, size, flag, call);
      if (kind == 2) diff = check_reduce(comm, size, flag, flag, call);
      if (kind == 3)
        diff = check_broadcast(comm, size, static_cast<int>(shared()) % comm.size(), call);
      if (!diff.empty()) return "call " + std::to_string(call) + ": " + diff;
    }
    return std::string();
  };
  for (int run = 0; run < 2; ++run) {
    Ranks ranks(8, 0, kTimeout, body);
    expect_silence(ranks, "run " + std::to_string(run));
  }
}

TEST(World, PeersReadEachOthersArenas) {
  Ranks ranks(4, 1 << 20, kTimeout, [](World& world) {
    auto comm = world.group(iota(4), "world");
    auto* first = static_cast<int*>(world.arena_alloc(100));
    auto* second = static_cast<int*>(world.arena_alloc(sizeof(int) * 1000));
    if (reinterpret_cast<uintptr_t>(second) % 256 != 0) return std::string("not aligned");
    if (*first != 0 || second[999] != 0) return std::string("not zeroed");
    for (int i = 0; i < 1000; ++i) second[i] = world.rank() * 1000 + i;
    comm->barrier(nullptr);
    for (int m = 0; m < 4; ++m) {
      const auto* theirs = static_cast<const int*>(comm->peer(m, second));
      for (int i = 0; i < 1000; ++i)
        if (theirs[i] != m * 1000 + i)
          return "member " + std::to_string(m) + ", element " + std::to_string(i);
    }
    if (comm->peer(world.rank(), second) != second) return std::string("own peer is not mine");
    return std::string();
  });
  expect_silence(ranks, "arena");
}

TEST(World, FullArenaNamesBothSizes) {
  Ranks ranks(2, 8192, kTimeout, [](World& world) {
    world.arena_alloc(4096);
    world.arena_alloc(5000);
    return std::string("allocated");
  });
  const auto ends = ranks.collect();
  EXPECT_EQ(ends[1].text, "rank 1: shared arena is full: 5000 bytes asked for, 4096 of 8192 left");
}

TEST(World, OpeningSomethingElseIsAnError) {
  const int other = memfd_create("x", 0);
  ASSERT_EQ(ftruncate(other, 1 << 22), 0);
  EXPECT_THROW(shm_world_open(other, 0, kTimeout), Error);
  close(other);
  EXPECT_THROW(shm_world_open(other, 0, kTimeout), Error);
  const int fd = shm_world_create(2, 4096);
  EXPECT_THROW(shm_world_open(fd, 2, kTimeout), Error);
  close(fd);
}

}  // namespace
}  // namespace rlk
