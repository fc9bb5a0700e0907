#pragma once
// The kernel benchmark's frame: cases, device buffers with random contents, and what runs them. A
// family of ops adds a cases_*.cpp with a function that appends its cases, and one line in
// case_list (cuda/harness.cpp).
//
// A case is made when its turn comes (its buffers live as long as it), run once and verified, then
// timed: a graph of one run a buffer set, replayed; sets together exceed the L2, so no run finds
// its inputs there. The median replay over the number of sets is the case's time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rlk/bench/bench.h"
#include "rlk/device/ops.h"

namespace rlk::bench {

// Device memory of one case and its random fill. Freed with the object.
class Buffers {
 public:
  explicit Buffers(const Ops& ops) : ops_(ops) {}
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  void* bytes(size_t n);
  template <class T>
  T* array(int64_t n) {
    return static_cast<T*>(bytes(static_cast<size_t>(n) * sizeof(T)));
  }
  bf16* normal(int64_t n, float std = 1.0f);  // filled on the device by init_normal
  float* normal_f32(int64_t n, float std = 1.0f);
  template <class T>
  T* copy_of(const std::vector<T>& host) {
    T* to = array<T>(static_cast<int64_t>(host.size()));
    upload(to, host.data(), host.size() * sizeof(T));
    return to;
  }
  template <class T>
  std::vector<T> host(const T* from, int64_t n) const {
    std::vector<T> out(static_cast<size_t>(n));
    download(out.data(), from, out.size() * sizeof(T));
    return out;
  }
  void upload(void* to, const void* from, size_t n) const;
  void download(void* to, const void* from, size_t n) const;
  const Ops& ops() const { return ops_; }

 private:
  const Ops& ops_;
  std::vector<void*> memory_;
  uint64_t fills_ = 0;
};

struct Case {
  int sets = 1;
  double bytes = 0;  // the fewest that device memory must move; 0: not judged by bytes
  double flops = 0;  // 0: not judged by them
  double warm_ms =
      30;  // of replays before the timed ones; matrix work settles at the power limit later
  std::function<void(Stream, int set)> run;
  std::function<void(Stream, int set)>
      library;  // the vendor's, on the same buffers, timed beside it; may be empty
  std::function<std::string()> verify;  // after run(stream, 0): empty when right
};

struct NamedCase {
  std::string op, shape;
  std::function<Case(Buffers&)> make;
};

void add_row_cases(std::vector<NamedCase>&);
void add_logits_cases(std::vector<NamedCase>&);
void add_optimizer_cases(std::vector<NamedCase>&);
void add_gemm_cases(std::vector<NamedCase>&);
void add_attention_cases(std::vector<NamedCase>&);

struct Result {
  std::string op, shape;
  double us = 0, gbps = 0, tflops = 0, of_ceiling = 0, library_us = 0;
};

// Collectives of 2, 4 and 8 GPUs, verified and timed by forked ranks; none where there is one GPU,
// which it says. Before this process touches CUDA. Throws Error when an output was wrong.
std::vector<Result> collective_results(const std::string& filter);

// Sets of `bytes` each whose total passes the L2 (60 MB on H100 and H200) several times.
int sets_of(double bytes);

// "" when |got - want| <= tolerance * (|want| + floor) everywhere, else the first miss.
std::string compare(const std::string& what, const std::vector<float>& got,
                    const std::vector<float>& want, float tolerance, float floor);
std::vector<float> floats(const std::vector<bf16>& x);

int run(const BenchOptions& options);

}  // namespace rlk::bench
