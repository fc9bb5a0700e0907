// Times the shared-memory collectives: comm_bench [ranks [largest message, bytes]]. Prints the
// median of repetitions, microseconds a call on rank 0.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/fork_ranks.h"

namespace rlk {
namespace {

double median_us(Communicator& comm, int calls, const std::function<void()>& call) {
  std::vector<double> samples;
  for (int repetition = 0; repetition < 9; ++repetition) {
    comm.barrier(nullptr);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    samples.push_back(took.count() / calls);
  }
  std::nth_element(samples.begin(), samples.begin() + 4, samples.end());
  return samples[4];
}

std::string bench(World& world, size_t largest) {
  std::vector<int> members;
  for (int r = 0; r < world.size(); ++r) members.push_back(r);
  auto comm = world.group(members, "world");
  std::string report;
  const auto row = [&](const std::string& what, size_t bytes, int calls,
                       const std::function<void()>& call) {
    if (bytes > largest) return;
    char line[128];
    std::snprintf(line, sizeof line, "%-18s %10zu bytes %10.1f us\n", what.c_str(), bytes,
                  median_us(*comm, calls, call));
    report += line;
  };
  std::vector<char> in(8 << 20), out(in.size() * members.size());
  row("barrier", 0, 1000, [&] { comm->barrier(nullptr); });
  for (size_t bytes : {64u, 4096u, 65536u, 262144u, 1u << 20, 8u << 20})
    row("all_gather", bytes, bytes < 100000 ? 500 : 20,
        [&] { comm->all_gather(nullptr, in.data(), out.data(), bytes); });
  for (size_t n : {256u, 1024u, 4096u, 8191u, 8192u, 16384u, 32768u, 65536u, 262144u, 2u << 20})
    for (bool f32 : {true, false})
      row(f32 ? "tree_reduce f32" : "tree_reduce bf16", n * 4, n < 30000 ? 300 : 20, [&] {
        comm->tree_reduce(nullptr, reinterpret_cast<float*>(in.data()), out.data(),
                          static_cast<int64_t>(n), f32);
      });
  return report;
}

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 8;
  const size_t largest = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8 << 20;
  rlk::test::Ranks ranks(count, 0, std::chrono::seconds(60),
                         [=](rlk::World& world) { return rlk::bench(world, largest); });
  const auto ends = ranks.collect(std::chrono::seconds(300));
  std::printf("%d ranks on %u cores\n%s", count, std::thread::hardware_concurrency(),
              ends[0].text.c_str());
  return ends[0].status == 0 ? 0 : 1;
}
