#include "../harness.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/common/check.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/build_info/build_info.h"

namespace rlk::bench {
namespace {

using cuda::check;
using cuda::stream_of;

constexpr double kReplayMs = 1, kTimedMs = 60;

std::vector<NamedCase> case_list() {
  std::vector<NamedCase> cases;
  add_row_cases(cases);
  add_logits_cases(cases);
  add_optimizer_cases(cases);
  add_gemm_cases(cases);
  add_attention_cases(cases);
  return cases;
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream stream) {
    check(cudaEventRecord(event_, stream_of(stream)), "cudaEventRecord");
  }
  double ms_since(const Event& start) const {
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Replays of one graph, milliseconds each.
std::vector<double> time_replays(const Ops& ops, Stream stream, Graph graph, int replays) {
  Event start, end;
  std::vector<double> ms(static_cast<size_t>(replays));
  for (double& one : ms) {
    start.record(stream);
    ops.graph_launch(stream, graph);
    end.record(stream);
    one = end.ms_since(start);
  }
  return ms;
}

using Run = std::function<void(Stream, int set)>;

Graph capture_runs(const Ops& ops, Stream stream, const Run& run, int sets, int runs) {
  ops.capture_begin(stream);
  for (int i = 0; i < runs; ++i) run(stream, i % sets);
  return ops.capture_end(stream);
}

// Microseconds of one run: enough runs a replay that the launch of the graph itself does not count.
double time_case(const Ops& ops, Stream stream, const Case& c, const Run& run) {
  Graph graph = capture_runs(ops, stream, run, c.sets, c.sets);
  const double once = time_replays(ops, stream, graph, 2)[1];
  ops.graph_destroy(graph);
  const int rounds = std::clamp(static_cast<int>(kReplayMs / once), 1, 64);
  graph = capture_runs(ops, stream, run, c.sets, c.sets * rounds);
  const double replay = once * rounds;
  (void)time_replays(ops, stream, graph, std::clamp(static_cast<int>(c.warm_ms / replay), 1, 400));
  std::vector<double> ms =
      time_replays(ops, stream, graph, std::clamp(static_cast<int>(kTimedMs / replay), 5, 31));
  ops.graph_destroy(graph);
  std::nth_element(ms.begin(), ms.begin() + static_cast<int64_t>(ms.size() / 2), ms.end());
  return ms[ms.size() / 2] * 1e3 / (c.sets * rounds);
}

// GB/s, read plus write, of a large device copy. Not in a graph: there a copy is left to a copy
// engine, which is slower.
double copy_ceiling(const Ops& ops, Stream stream) {
  Buffers buffers(ops);
  constexpr int64_t kBytes = int64_t{1} << 30;
  const void* from = buffers.normal(kBytes / 2);
  void* to = buffers.bytes(kBytes);
  Event start, end;
  std::vector<double> ms(31);
  for (double& one : ms) {
    start.record(stream);
    ops.copy(stream, to, from, kBytes);
    end.record(stream);
    one = end.ms_since(start);
  }
  std::nth_element(ms.begin(), ms.begin() + 15, ms.end());
  return 2.0 * kBytes / ms[15] / 1e6;
}

std::map<std::string, double> read_library(const std::filesystem::path& path) {
  std::map<std::string, double> us;
  if (path.empty()) return us;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(','), last = line.rfind(',');
    if (first == std::string::npos || first == last || line.rfind("op,", 0) == 0) continue;
    us[line.substr(0, last)] = std::stod(line.substr(last + 1));
  }
  return us;
}

std::string device_line(int device) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  int clock_khz = 0, memory_khz = 0;
  check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device),
        "cudaDeviceGetAttribute");
  const BuildInfo& build = build_info();
  std::ostringstream text;
  text << p.name << ", " << p.multiProcessorCount << " SMs, up to " << clock_khz / 1000
       << " MHz, memory " << memory_khz / 1000 << " MHz, revision " << build.revision
       << (build.dirty ? " (dirty)" : "");
  return text.str();
}

void print(const Result& r) {
  std::printf("%-20s %-34s %10.2f us", r.op.c_str(), r.shape.c_str(), r.us);
  if (r.tflops > 0) std::printf(" %8.1f TFLOP/s", r.tflops);
  if (r.gbps > 0) std::printf(" %8.1f GB/s %5.2f x copy", r.gbps, r.of_ceiling);
  if (r.library_us > 0)
    std::printf(" %6.2f x library (%.2f us)", r.library_us / r.us, r.library_us);
  std::printf("\n");
  std::fflush(stdout);
}

void write_csv(const std::filesystem::path& path, const std::string& device, double ceiling,
               const std::vector<Result>& rows) {
  std::ostringstream text;
  text << "# " << device << ", copy ceiling " << ceiling << " GB/s\n"
       << "op,shape,us,gb_per_s,of_copy,tflop_per_s,library_us\n";
  for (const Result& r : rows)
    text << r.op << ',' << r.shape << ',' << r.us << ',' << r.gbps << ',' << r.of_ceiling << ','
         << r.tflops << ',' << r.library_us << '\n';
  write_file_atomic(path, text.str());
}

}  // namespace

Buffers::~Buffers() {
  for (void* p : memory_) (void)cudaFree(p);
}

void* Buffers::bytes(size_t n) {
  memory_.push_back(ops_.alloc(n));
  return memory_.back();
}

bf16* Buffers::normal(int64_t n, float std) {
  bf16* x = array<bf16>(n);
  ops_.init_normal(nullptr, {x, n, 0, 1, ++fills_, std});
  ops_.synchronize(nullptr);
  return x;
}

// Floats whose low halves are random too: a pair of bf16 is one, with the exponent of the high
// half.
float* Buffers::normal_f32(int64_t n, float std) {
  bf16* x = normal(2 * n, std);
  return reinterpret_cast<float*>(x);
}

void Buffers::upload(void* to, const void* from, size_t n) const {
  ops_.copy(nullptr, to, from, n);
  ops_.synchronize(nullptr);
}

void Buffers::download(void* to, const void* from, size_t n) const {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  ops_.copy(nullptr, to, from, n);
  ops_.synchronize(nullptr);
}

int sets_of(double bytes) {
  constexpr double kL2 = 60e6;
  return std::clamp(static_cast<int>(std::ceil(3 * kL2 / bytes)), 1, 64);
}

std::string compare(const std::string& what, const std::vector<float>& got,
                    const std::vector<float>& want, float tolerance, float floor) {
  for (size_t i = 0; i < want.size(); ++i) {
    const float error = std::fabs(got[i] - want[i]);
    if (error <= tolerance * (std::fabs(want[i]) + floor) || got[i] == want[i]) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%s[%zu] = %a, expected %a", what.c_str(), i, got[i], want[i]);
    return text;
  }
  return "";
}

std::vector<float> floats(const std::vector<bf16>& x) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = to_float(x[i]);
  return out;
}

int run(const BenchOptions& options) {
  std::vector<Result> rows = collective_results(options.filter);
  const Ops& ops = cuda_ops(options.device);
  const auto library = read_library(options.library);
  const auto library_of = [&](Result& r) {
    if (const auto at = library.find(r.op + "," + r.shape); at != library.end())
      r.library_us = at->second;
  };
  const std::string device = device_line(options.device);
  const Stream stream = ops.stream_create();
  const double ceiling = copy_ceiling(ops, stream);
  std::printf("%s\ncopy ceiling (read + write) %.0f GB/s\n", device.c_str(), ceiling);
  for (Result& r : rows) library_of(r), print(r);
  int wrong = 0;
  for (const NamedCase& named : case_list()) {
    const std::string name = named.op + " " + named.shape;
    if (name.find(options.filter) == std::string::npos) continue;
    Buffers buffers(ops);
    const Case c = named.make(buffers);
    c.run(stream, 0);
    ops.synchronize(stream);
    if (const std::string miss = c.verify(); !miss.empty()) {
      std::printf("%-20s %-34s WRONG: %s\n", named.op.c_str(), named.shape.c_str(), miss.c_str());
      ++wrong;
      continue;
    }
    Result row{named.op, named.shape, time_case(ops, stream, c, c.run)};
    row.gbps = c.bytes / row.us / 1e3;
    row.tflops = c.flops / row.us / 1e6;
    row.of_ceiling = row.gbps / ceiling;
    library_of(row);
    if (c.library) row.library_us = time_case(ops, stream, c, c.library);
    print(row);
    rows.push_back(row);
  }
  ops.stream_destroy(stream);
  if (!options.csv.empty()) write_csv(options.csv, device, ceiling, rows);
  if (wrong > 0) std::printf("%d cases wrong\n", wrong);
  return wrong > 0 ? kExitFailed : kExitOk;
}

}  // namespace rlk::bench
