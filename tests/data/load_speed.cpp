// How fast a checkpoint is loaded, beside read(2) of the same files in the same run.
//   load_speed MODEL_DIR [ROUNDS]
// Each row is the best of ROUNDS (3), first with the files evicted from the page cache before every
// reading (cold), then with the files in it (warm). "8 ranks" are the shards of TP 8, one after the
// other. Large checkpoints: rlk prepare --synthetic qwen3-8b --out DIR.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/data/checkpoint.h"

namespace {

using namespace rlk;
namespace fs = std::filesystem;

double cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return of(use.ru_utime) + of(use.ru_stime);
}

struct Took {
  double wall = 1e9, cpu = 1e9;
};
Took best_of(int rounds, const std::function<void()>& before, const std::function<void()>& work) {
  Took best;
  for (int i = 0; i < rounds; ++i) {
    before();
    const auto start = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    work();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    best = {std::min(best.wall, wall.count()), std::min(best.cpu, cpu_seconds() - cpu)};
  }
  return best;
}

void evict(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY);
    if (fd < 0 || ::fdatasync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
      throw system_error("evict " + file.string());
    ::close(fd);
  }
}

void read_files(const std::vector<fs::path>& files) {
  std::vector<char> buffer(8 << 20);
  for (const fs::path& file : files) {
    const int fd = ::open(file.c_str(), O_RDONLY);
    if (fd < 0) throw system_error("open " + file.string());
    ssize_t n;
    while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) {
    }
    if (n < 0) throw system_error("read " + file.string());
    ::close(fd);
  }
}

// One of `ranks` equal parts of every tensor: rows, or columns of what contracts features.
void read_part(const Checkpoint& checkpoint, const std::vector<CheckpointTensor>& tensors, int rank,
               int ranks, std::vector<bf16>& out) {
  for (const CheckpointTensor& t : tensors) {
    const bool columns =
        t.name.find("o_proj") != std::string::npos || t.name.find("down_proj") != std::string::npos;
    const int64_t size = columns ? t.columns : t.rows;
    const int64_t begin = t.vector ? 0 : size * rank / ranks;
    const int64_t count = t.vector ? size : size * (rank + 1) / ranks - begin;
    out.resize(static_cast<size_t>(t.elements() / size * count));
    if (columns)
      checkpoint.read(t.name, 0, t.rows, begin, count, out.data());
    else
      checkpoint.read(t.name, begin, count, 0, t.columns, out.data());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: load_speed MODEL_DIR [ROUNDS]\n"), 2;
  const fs::path dir = argv[1];
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
  const ModelConfig config = read_model_config(dir);
  const Checkpoint checkpoint(dir, config);
  const auto tensors = checkpoint_tensors(config);
  const auto gb = static_cast<double>(checkpoint.bytes()) / 1e9;
  std::vector<bf16> buffer;
  const std::vector<std::pair<const char*, std::function<void()>>> rows = {
      {"read(2), 8 MiB", [&] { read_files(checkpoint.files()); }},
      {"load, 1 rank", [&] { read_part(Checkpoint(dir, config), tensors, 0, 1, buffer); }},
      {"load, 8 ranks",
       [&] {
         for (int rank = 0; rank < 8; ++rank)
           read_part(Checkpoint(dir, config), tensors, rank, 8, buffer);
       }},
      {"verify", [&] { Checkpoint(dir, config).verify(); }}};
  std::printf("%s: %.2f GB; GB/s by the clock, and by the CPU time that it took\n", dir.c_str(),
              gb);
  std::printf("%-16s %10s %10s %10s %10s\n", "", "cold", "cold CPU", "warm", "warm CPU");
  for (const auto& [name, work] : rows) {
    const Took cold = best_of(
        rounds, [&] { evict(checkpoint.files()); }, work);
    const Took warm = best_of(
        rounds, [] {}, work);
    std::printf("%-16s %10.2f %10.2f %10.2f %10.2f\n", name, gb / cold.wall, gb / cold.cpu,
                gb / warm.wall, gb / warm.cpu);
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "load_speed: %s\n", error.what()), 1;
}
