#pragma once
// SHA-256 through OpenSSL. Thread-safe; one Sha256 object per thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace rlk {

using Digest = std::array<uint8_t, 32>;

Digest sha256(const void* data, size_t bytes);
Digest sha256_file(const std::filesystem::path& path);  // throws Error
std::string hex(const Digest&);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(const void* data, size_t bytes);
  Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rlk
