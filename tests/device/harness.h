#pragma once
// What every op test needs: the backends, device arrays between guard bytes, comparisons that print
// the case, the first differing index and both values in hex. One thread; arrays own their device
// memory.
//
// A test is written once and runs for each backend: class Gemm : public OpTest {}; TEST_P(Gemm,
// Claim) {...}; RLK_FOR_EACH_BACKEND(Gemm). The cuda instance is skipped where the build, the
// device or the entry of the table is missing; RLK_REQUIRE_CUDA=1 turns that skip into a failure,
// for machines that must test it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "rlk/base/bf16.h"
#include "rlk/base/error.h"
#include "rlk/device/ops.h"

namespace rlk::test {

// The table of a backend, null where it cannot run here (`why` says so).
const Ops* backend_ops(const std::string& name, std::string* why);

class OpTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  const Ops& ops() const { return *ops_; }
  bool is_cuda() const { return GetParam() == "cuda"; }
  // Skips the test when the backend has no such op yet: RLK_NEEDS(gemm).
  bool missing(const void* entry, const char* name) const;

 private:
  const Ops* ops_ = nullptr;
};

#define RLK_NEEDS(entry)                                           \
  if (missing(reinterpret_cast<const void*>(ops().entry), #entry)) \
  GTEST_SKIP() << #entry " is not bound"

#define RLK_FOR_EACH_BACKEND(suite)                                          \
  INSTANTIATE_TEST_SUITE_P(Backend, suite, ::testing::Values("cpu", "cuda"), \
                           [](const auto& param) { return std::string(param.param); })

// ---- Device memory

inline constexpr size_t kGuardBytes = 256;
inline constexpr unsigned char kGuard = 0xA5;
inline constexpr unsigned char kPoison =
    0xFF;  // of outputs: a NaN in every float format, never a right answer

// Bytes of device memory between two guards. Not copied, only moved.
class DeviceBytes {
 public:
  DeviceBytes(const Ops& ops, size_t bytes);
  DeviceBytes(DeviceBytes&& other) noexcept;
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes();
  unsigned char* data() const { return base_ + kGuardBytes; }
  void write(const void* from);  // size() bytes
  void read(void* to) const;     // size() bytes; checks the guards
  size_t size() const { return bytes_; }

 private:
  const Ops* ops_;
  size_t bytes_;
  unsigned char* base_;
};

template <class T>
class DeviceArray {
 public:
  // An output: poisoned. An input: copied from the host.
  DeviceArray(const Ops& ops, size_t n) : bytes_(ops, n * sizeof(T)), n_(n) {
    std::vector<unsigned char> poison(n * sizeof(T), kPoison);
    bytes_.write(poison.data());
  }
  DeviceArray(const Ops& ops, const std::vector<T>& host)
      : bytes_(ops, host.size() * sizeof(T)), n_(host.size()) {
    bytes_.write(host.data());
  }
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  size_t size() const { return n_; }
  void set(const std::vector<T>& host) { bytes_.write(host.data()); }
  std::vector<T> host() const {
    std::vector<T> out(n_);
    bytes_.read(out.data());
    return out;
  }

 private:
  DeviceBytes bytes_;
  size_t n_;
};

// ---- Inputs

// Seeded inputs; the same on every backend.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float normal(float std = 1.f) {  // sum of 4 uniforms: no library function whose bits may vary
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(engine_() >> 40) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f * std;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  std::vector<float> floats(size_t n, float std = 1.f, float mean = 0.f);
  std::vector<bf16> bf16s(size_t n, float std = 1.f, float mean = 0.f);

 private:
  std::mt19937_64 engine_;
};

inline double value(float x) {
  return x;
}
inline double value(double x) {
  return x;
}
inline double value(bf16 x) {
  return to_float(x);
}
inline double value(int32_t x) {
  return x;
}

template <class T>
std::vector<double> values(const std::vector<T>& x) {
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = value(x[i]);
  return out;
}

// ---- Comparisons

std::string hex_bytes(const void* value, size_t bytes);

// Index of the first element that differs in any bit, -1 when none does.
template <class T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return static_cast<int64_t>(std::min(a.size(), b.size()));
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  return -1;
}

template <class T>
::testing::AssertionResult same_bits(const std::string& what, const std::vector<T>& a,
                                     const std::vector<T>& b) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (a.size() != b.size())
    return ::testing::AssertionFailure()
           << what << ": " << a.size() << " and " << b.size() << " elements";
  const int64_t i = first_difference(a, b);
  if (i < 0) return ::testing::AssertionSuccess();
  size_t differing = 0;
  for (size_t j = 0; j < a.size(); ++j) differing += std::memcmp(&a[j], &b[j], sizeof(T)) != 0;
  return ::testing::AssertionFailure()
         << what << ": " << differing << " of " << a.size() << " elements differ, first at " << i
         << ": " << hex_bytes(&a[static_cast<size_t>(i)], sizeof(T)) << " and "
         << hex_bytes(&b[static_cast<size_t>(i)], sizeof(T));
}

// |got - want| <= tolerance * scale for every element. `scale` gives each element's own yardstick
// (for a sum: the sum of the terms' magnitudes); empty means max(|want|, floor). Records the worst
// ratio as a test property.
struct Tolerance {
  double relative;
  double floor = 0;
};

::testing::AssertionResult close_to(const std::string& what, const std::vector<double>& got,
                                    const std::vector<double>& want, Tolerance tolerance,
                                    const std::vector<double>& scale = {});

template <class T>
::testing::AssertionResult close_to(const std::string& what, const std::vector<T>& got,
                                    const std::vector<double>& want, Tolerance tolerance,
                                    const std::vector<double>& scale = {}) {
  return close_to(what, values(got), want, tolerance, scale);
}

// Half a unit in the last place of a bf16 result, plus room for the fp32 sum behind it.
inline constexpr double kBf16Half = 0x1p-8;

}  // namespace rlk::test
