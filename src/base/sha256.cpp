#include "rlk/base/sha256.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "rlk/base/error.h"

namespace rlk {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  Impl() {
    if (context == nullptr || EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1)
      throw Error("OpenSSL: cannot start SHA-256");
  }
  ~Impl() { EVP_MD_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;

void Sha256::update(const void* data, size_t bytes) {
  if (EVP_DigestUpdate(impl_->context, data, bytes) != 1)
    throw Error("OpenSSL: SHA-256 update failed");
}

Digest Sha256::finish() {
  Digest digest;
  if (EVP_DigestFinal_ex(impl_->context, digest.data(), nullptr) != 1)
    throw Error("OpenSSL: SHA-256 finish failed");
  return digest;
}

Digest sha256(const void* data, size_t bytes) {
  Sha256 hash;
  hash.update(data, bytes);
  return hash.finish();
}

Digest sha256_file(const std::filesystem::path& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) throw system_error("open " + path.string());
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    hash.update(buffer.data(), n);
  if (std::ferror(file.get()) != 0) throw system_error("read " + path.string());
  return hash.finish();
}

std::string hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace rlk
