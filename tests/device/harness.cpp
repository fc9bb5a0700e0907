#include "device/harness.h"

#include <cstdio>
#include <cstdlib>

namespace rlk::test {

const Ops* backend_ops(const std::string& name, std::string* why) {
  if (name == "cpu") return &cpu_ops(1);
#ifdef RLK_CUDA
  try {
    return &cuda_ops(0);
  } catch (const Error& error) {
    *why = error.what();
  }
#else
  *why = "built without RLK_CUDA";
#endif
  return nullptr;
}

void OpTest::SetUp() {
  std::string why;
  ops_ = backend_ops(GetParam(), &why);
  if (ops_) return;
  if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
  GTEST_SKIP() << why;
}

bool OpTest::missing(const void* entry, const char* name) const {
  if (entry == nullptr && std::getenv("RLK_REQUIRE_CUDA"))
    ADD_FAILURE() << "RLK_REQUIRE_CUDA is set, and " << name << " is not bound";
  return entry == nullptr;
}

DeviceBytes::DeviceBytes(const Ops& ops, size_t bytes)
    : ops_(&ops),
      bytes_(bytes),
      base_(static_cast<unsigned char*>(ops.alloc(bytes + 2 * kGuardBytes))) {
  const std::vector<unsigned char> guard(bytes + 2 * kGuardBytes, kGuard);
  ops.copy(nullptr, base_, guard.data(), guard.size());
  ops.synchronize(nullptr);
}

DeviceBytes::DeviceBytes(DeviceBytes&& other) noexcept
    : ops_(other.ops_), bytes_(other.bytes_), base_(other.base_) {
  other.base_ = nullptr;
}

DeviceBytes::~DeviceBytes() {
  if (base_) ops_->free(base_);
}

void DeviceBytes::write(const void* from) {
  ops_->copy(nullptr, data(), from, bytes_);
  ops_->synchronize(nullptr);
}

void DeviceBytes::read(void* to) const {
  std::vector<unsigned char> all(bytes_ + 2 * kGuardBytes);
  ops_->copy(nullptr, all.data(), base_, all.size());
  ops_->synchronize(nullptr);
  if (bytes_) std::memcpy(to, all.data() + kGuardBytes, bytes_);
  for (size_t i = 0; i < kGuardBytes; ++i) {
    const size_t after = kGuardBytes + bytes_ + i;
    EXPECT_EQ(all[i], kGuard) << "written " << kGuardBytes - i << " bytes before the array";
    EXPECT_EQ(all[after], kGuard) << "written " << i << " bytes past the array of " << bytes_;
    if (all[i] != kGuard || all[after] != kGuard) return;
  }
}

std::vector<float> Random::floats(size_t n, float std, float mean) {
  std::vector<float> out(n);
  for (float& x : out) x = mean + normal(std);
  return out;
}

std::vector<bf16> Random::bf16s(size_t n, float std, float mean) {
  std::vector<bf16> out(n);
  for (bf16& x : out) x = to_bf16(mean + normal(std));
  return out;
}

std::string hex_bytes(const void* value, size_t bytes) {
  std::string text = "0x";
  char digits[3];
  for (size_t i = bytes; i-- > 0;) {  // most significant byte first
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(value)[i]);
    text += digits;
  }
  return text;
}

::testing::AssertionResult close_to(const std::string& what, const std::vector<double>& got,
                                    const std::vector<double>& want, Tolerance tolerance,
                                    const std::vector<double>& scale) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure()
           << what << ": " << got.size() << " and " << want.size() << " elements";
  double worst = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double yard = scale.empty() ? std::max(std::abs(want[i]), tolerance.floor)
                                      : std::max(scale[i], tolerance.floor);
    double ratio = std::abs(got[i] - want[i]) / yard;
    if (!(ratio < 1e300)) ratio = 1e300;  // a NaN or infinity on one side alone
    if (ratio > worst) worst = ratio, worst_at = i;
  }
  std::printf("  error %-44s worst %.3g of %.3g\n", what.c_str(), worst, tolerance.relative);
  if (worst <= tolerance.relative) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << what << ": error " << worst << " exceeds " << tolerance.relative << " at " << worst_at
         << ": got " << got[worst_at] << ", want " << want[worst_at];
}

}  // namespace rlk::test
