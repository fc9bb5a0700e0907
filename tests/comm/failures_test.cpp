// What a collective does when a member is missing, confused or dead: every wait ends, and says why.

#include <gtest/gtest.h>

#include "comm/fork_ranks.h"

namespace rlk {
namespace {

using std::chrono::steady_clock;
using test::milliseconds;
using test::Ranks;

const std::vector<int> kFour = {0, 1, 2, 3};

milliseconds since(steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
}

TEST(CommFailure, MissingMemberEndsInTimeoutThatNamesEverything) {
  const auto start = steady_clock::now();
  Ranks ranks(4, 0, milliseconds(300), [](World& world) {
    auto all = world.group(kFour, "world");
    auto tp = world.group({world.rank() / 2 * 2, world.rank() / 2 * 2 + 1}, "tp");
    if (world.rank() < 2) tp->barrier(nullptr);
    if (world.rank() == 1) return std::string("left");
    char in[100] = {}, out[400];
    all->all_gather(nullptr, in, out, 100);
    return std::string("done");
  });
  const auto ends = ranks.collect();
  EXPECT_EQ(ends[1].text, "left");
  for (int rank : {0, 2, 3}) {
    EXPECT_EQ(ends[static_cast<size_t>(rank)].text,
              "rank " + std::to_string(rank) +
                  ": all_gather #2 of group world, 100 bytes: no arrival within 0.300 s of rank 1 "
                  "(last seen in "
                  "barrier #2 of group tp)");
    EXPECT_FALSE(ends[static_cast<size_t>(rank)].aborted);
  }
  EXPECT_GE(since(start), milliseconds(300));
  EXPECT_LT(since(start), milliseconds(5000));
}

TEST(CommFailure, MemberThatNeverJoinsIsNamed) {
  Ranks ranks(2, 0, milliseconds(100), [](World& world) {
    if (world.rank() == 1) return std::string();
    auto all = world.group({0, 1}, "world");
    return std::string("joined");
  });
  EXPECT_EQ(
      ranks.collect()[0].text,
      "rank 0: group #1 of group world, 0 bytes: no arrival within 0.100 s of rank 1 (never seen)");
}

// Each pair of calls that differ in one part of the signature: both sides must fail at once and
// name the other.
TEST(CommFailure, DifferentCallsAreNamedOnBothSides) {
  using Call = std::function<void(Communicator&)>;
  static char buffer[2 << 20];
  static float floats[100];
  const auto gather = [](size_t bytes) {
    return Call([=](Communicator& c) { c.all_gather(nullptr, buffer, buffer + (1 << 20), bytes); });
  };
  const auto reduce = [](bool f32) {
    return Call([=](Communicator& c) { c.tree_reduce(nullptr, floats, buffer, 100, f32); });
  };
  const auto cast = [](int root) {
    return Call([=](Communicator& c) { c.broadcast(nullptr, buffer, 16, root); });
  };
  const Call barrier = [](Communicator& c) { c.barrier(nullptr); };
  const Call ahead = [](Communicator& c) { c.barrier(nullptr), c.barrier(nullptr); };
  struct Case {
    Call a, b;
    std::string a_says, b_says;
  };
  const std::vector<Case> cases = {
      {gather(8), gather(12), "all_gather #2 of group world, 8 bytes",
       "all_gather #2 of group world, 12 bytes"},
      {gather(0), gather(300000), "all_gather #2 of group world, 0 bytes",
       "all_gather #2 of group world, 300000 bytes"},
      {gather(400), reduce(true), "all_gather #2 of group world, 400 bytes",
       "tree_reduce #2 of group world, 400 bytes, fp32"},
      {reduce(true), reduce(false), "tree_reduce #2 of group world, 400 bytes, fp32",
       "tree_reduce #2 of group world, 400 bytes, bf16"},
      {cast(0), cast(1), "broadcast #2 of group world, 16 bytes, root 0",
       "broadcast #2 of group world, 16 bytes, root 1"},
      {barrier, gather(8), "barrier #2 of group world, 0 bytes",
       "all_gather #2 of group world, 8 bytes"},
  };
  for (const Case& c : cases) {
    const auto start = steady_clock::now();
    Ranks ranks(2, 0, milliseconds(20'000), [&](World& world) {
      auto comm = world.group({0, 1}, "world");
      (world.rank() == 0 ? c.a : c.b)(*comm);
      return std::string("passed");
    });
    const auto ends = ranks.collect();
    EXPECT_EQ(ends[0].text, "rank 0: " + c.a_says + ": does not match rank 1: " + c.b_says);
    EXPECT_EQ(ends[1].text, "rank 1: " + c.b_says + ": does not match rank 0: " + c.a_says);
    EXPECT_LT(since(start), milliseconds(5000));
  }
  // One side is a call behind: the sequence numbers say so.
  Ranks ranks(2, 0, milliseconds(200), [&](World& world) {
    auto comm = world.group({0, 1}, "world");
    (world.rank() == 0 ? ahead : barrier)(*comm);
    return std::string("passed");
  });
  EXPECT_EQ(ranks.collect()[0].text,
            "rank 0: barrier #3 of group world, 0 bytes: no arrival within 0.200 s of rank 1 (last "
            "seen in barrier #2 "
            "of group world)");
}

TEST(CommFailure, AbortWakesAllAndFirstReasonIsKept) {
  const auto start = steady_clock::now();
  Ranks ranks(8, 0, milliseconds(60'000), [](World& world) {
    auto all = world.group({0, 1, 2, 3, 4, 5, 6, 7}, "world");
    auto pair = world.group({world.rank() / 2 * 2, world.rank() / 2 * 2 + 1}, "pair");
    if (world.rank() == 5) {
      usleep(100'000);
      world.abort("rank 5: out of luck");
      world.abort("too late");
      return world.abort_reason();
    }
    (world.rank() == 4 ? pair : all)->barrier(nullptr);
    return std::string("passed");
  });
  const auto ends = ranks.collect();
  for (size_t rank = 0; rank < 8; ++rank) {
    if (rank == 5) {
      EXPECT_EQ(ends[rank].text, "rank 5: out of luck");
      continue;
    }
    EXPECT_TRUE(ends[rank].aborted);
    EXPECT_EQ(ends[rank].text, "rank " + std::to_string(rank) + ": barrier #2 of group " +
                                   (rank == 4 ? "pair" : "world") +
                                   ", 0 bytes: run aborted: rank 5: out of luck");
  }
  EXPECT_LT(since(start), milliseconds(5000));
}

TEST(CommFailure, LaunchersAbortWakesAllAndLaterCallsFailToo) {
  Ranks ranks(2, 0, milliseconds(60'000), [](World& world) {
    auto all = world.group({0, 1}, "world");
    if (world.rank() == 0) {
      try {
        all->barrier(nullptr);
      } catch (const AbortError&) {
        world.group({0, 1}, "later");  // a group that is made after the abort
      }
    }
    while (world.abort_reason().empty()) usleep(1000);
    return world.abort_reason();
  });
  usleep(50'000);
  shm_world_abort(ranks.fd(), "stopped");
  const auto ends = ranks.collect();
  EXPECT_TRUE(ends[0].aborted);
  EXPECT_EQ(ends[0].text, "rank 0: group #1 of group later, 0 bytes: run aborted: stopped");
  EXPECT_EQ(ends[1].text, "stopped");
}

TEST(CommFailure, KilledPeerEndsInTimeoutOrAbort) {
  const auto body = [](World& world) {
    auto all = world.group(kFour, "world");
    for (;;) all->barrier(nullptr);
    return std::string();
  };
  for (bool launcher_watches : {false, true}) {
    Ranks ranks(4, 0, milliseconds(launcher_watches ? 60'000 : 500), body);
    usleep(100'000);
    const auto start = steady_clock::now();
    kill(ranks.pid(2), SIGKILL);
    if (launcher_watches) shm_world_abort(ranks.fd(), "rank 2: killed");
    const auto ends = ranks.collect();
    EXPECT_LT(since(start), milliseconds(5000));
    EXPECT_TRUE(WIFSIGNALED(ends[2].status));
    for (size_t rank : {0, 1, 3}) {
      EXPECT_EQ(ends[rank].aborted, launcher_watches);
      EXPECT_NE(ends[rank].text.find(launcher_watches ? "run aborted: rank 2: killed"
                                                      : "no arrival within 0.500 s"),
                std::string::npos)
          << ends[rank].text;
    }
  }
}

TEST(CommFailure, TooManyGroupsIsAnError) {
  Ranks ranks(2, 0, milliseconds(5000), [](World& world) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < 65; ++i) groups.push_back(world.group({0, 1}, "g"));
    return std::string("made");
  });
  EXPECT_EQ(ranks.collect()[0].text, "rank 0: no room for group g: a world has 64 groups");
}

}  // namespace
}  // namespace rlk
