// Collectives of 2, 4 and 8 ranks, a GPU each, beside NCCL's (its all-reduce of fp32 beside
// tree_reduce). The ranks are forked before this process touches CUDA; rank 0 reports its times, a
// graph of calls replayed, median over replays.

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "../harness.h"
#include "kernels/common/check.h"
#include "rlk/comm/native_sum.h"
#include "rlk/comm/world.h"

namespace rlk::bench {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostBytes = size_t{64} << 20;

// Runs `body` in a child; what it printed to the pipe, or throws.
class Child {
 public:
  template <class Body>
  explicit Child(const Body& body) {
    int ends[2];
    if (pipe(ends) != 0) throw system_error("pipe");
    pid_ = fork();
    if (pid_ < 0) throw system_error("fork");
    if (pid_ == 0) {
      int code = 1;
      std::string text;
      try {
        text = body();
        code = 0;
      } catch (const std::exception& e) {
        text = e.what();
      }
      const bool written =
          write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      _exit(written ? code : 1);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  std::string text() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(out_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    close(out_);
    int status = 0;
    waitpid(pid_, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      throw Error("collectives: a rank failed: " + text);
    return text;
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
};

std::vector<int> all_ranks(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Sums of eight are exact, so that any order gives them.
float value_of(int rank, int64_t i) {
  return static_cast<float>((i * 7919 + rank * 104729) % 2039 - 1019) * 0x1p-9f;
}

struct Bench {
  const Ops& ops;
  Communicator& group;
  NativeSum& nccl;
  Stream stream;
  float* in;
  float* out;
  int ranks = group.size();
  std::string rows = "";

  void check_outputs(bool reduced, int64_t n) const {
    std::vector<float> got(static_cast<size_t>(reduced ? n : n * ranks));
    std::vector<bf16> sums(static_cast<size_t>(n));
    if (reduced) {
      ops.copy(stream, sums.data(), out, sums.size() * sizeof(bf16));
      ops.synchronize(stream);
      got = floats(sums);
    } else {
      ops.copy(stream, got.data(), out, got.size() * sizeof(float));
      ops.synchronize(stream);
    }
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      float want = value_of(reduced ? 0 : static_cast<int>(i / n), i % n);
      for (int r = 1; reduced && r < ranks; ++r) want += value_of(r, i);
      if (reduced) want = to_float(to_bf16(want));
      if (got[static_cast<size_t>(i)] != want)
        throw Error((reduced ? "tree_reduce" : "all_gather") + std::string(": element ") +
                    std::to_string(i) + " is wrong");
    }
  }

  double time(const std::function<void()>& call, int runs) {
    call();  // NCCL connects at its first call
    ops.synchronize(stream);
    ops.capture_begin(stream);
    for (int i = 0; i < runs; ++i) call();
    const Graph graph = ops.capture_end(stream);
    std::vector<double> us;
    for (int i = 0; i < 21; ++i) {
      group.barrier(stream);
      ops.synchronize(stream);
      const auto begin = std::chrono::steady_clock::now();
      ops.graph_launch(stream, graph);
      ops.synchronize(stream);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      us.push_back(took.count() / runs);
    }
    ops.graph_destroy(graph);
    std::nth_element(us.begin(), us.begin() + 10, us.end());
    return us[10];
  }

  void add(const std::string& op, const std::string& shape, double us, double nccl_us) {
    rows += op + "," + shape + "," + std::to_string(us) + "," + std::to_string(nccl_us) + "\n";
  }

  void run() {
    const std::string gpus = std::to_string(ranks) + " GPUs";
    add("barrier", gpus, time([&] { group.barrier(stream); }, 50), 0);
    for (size_t kib : {8, 64, 1024, 8192, 65536}) {
      const size_t bytes = kib << 10;
      const auto n = static_cast<int64_t>(bytes / sizeof(float));
      const int runs = bytes > (1 << 20) ? 10 : 50;
      const std::string size = gpus + " " + std::to_string(kib) + " KiB";
      const auto gather = [&] { group.all_gather(stream, in, out, bytes); };
      const auto reduce = [&] { group.tree_reduce(stream, in, out, n, false); };
      gather();
      check_outputs(false, n);
      add("all_gather", size + " a rank", time(gather, runs),
          time([&] { nccl.all_gather(stream, in, out, bytes); }, runs));
      reduce();
      check_outputs(true, n);
      add("tree_reduce", size + " to bf16", time(reduce, runs),
          time([&] { nccl.add(stream, out, n); }, runs));
    }
  }
};

std::string rank_main(int fd, int rank, int ranks) {
  const auto host = shm_world_open(fd, rank, 60s);
  const Ops& ops = cuda_ops(rank);
  const Stream stream = ops.stream_create();
  const auto world = ipc_world_open(*host, size_t{64} << 20, 20s);
  const auto group = world->group(all_ranks(ranks), "bench");
  const auto meeting = host->group(all_ranks(ranks), "nccl");
  const auto nccl = nccl_sum(*meeting);
  auto* in = static_cast<float*>(ops.alloc(kMostBytes));
  auto* out = static_cast<float*>(ops.alloc(kMostBytes * static_cast<size_t>(ranks)));
  std::vector<float> mine(kMostBytes / sizeof(float));
  for (size_t i = 0; i < mine.size(); ++i) mine[i] = value_of(rank, static_cast<int64_t>(i));
  ops.copy(stream, in, mine.data(), kMostBytes);
  ops.synchronize(stream);
  Bench bench{ops, *group, *nccl, stream, in, out};
  bench.run();
  meeting->barrier(nullptr);
  return rank == 0 ? bench.rows : "";
}

int device_count() {
  return std::stoi(Child([] {
                     int count = 0;
                     return std::to_string(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
                   }).text());
}

std::string bench_ranks(int ranks) {
  const int fd = shm_world_create(ranks, 1 << 20);
  std::vector<Child> children;
  for (int r = 0; r < ranks; ++r) children.emplace_back([&] { return rank_main(fd, r, ranks); });
  std::string text;
  for (Child& child : children) text += child.text();
  close(fd);
  return text;
}

}  // namespace

std::vector<Result> collective_results(const std::string& filter) {
  if (std::string("collectives: barrier, all_gather, tree_reduce 2 GPUs").find(filter) ==
      std::string::npos)
    return {};
  const int devices = device_count();
  if (devices < 2) {
    std::printf("collectives: not run, they need 2 GPUs\n");
    return {};
  }
  std::string text;
  for (int ranks = 2; ranks <= std::min(devices, 8); ranks *= 2) text += bench_ranks(ranks);
  std::vector<Result> rows;
  std::istringstream lines(text);
  for (std::string op, shape, us, nccl_us; std::getline(lines, op, ',');) {
    std::getline(lines, shape, ',');
    std::getline(lines, us, ',');
    std::getline(lines, nccl_us);
    Result& row = rows.emplace_back(Result{op, shape, std::stod(us)});
    row.library_us = std::stod(nccl_us);
  }
  return rows;
}

}  // namespace rlk::bench
