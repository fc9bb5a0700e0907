#include "rlk/data/download.h"

#include <curl/curl.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <memory>
#include <string_view>

#include "rlk/base/error.h"
#include "rlk/base/sha256.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr long kConnectSeconds = 30, kStallSeconds = 60;
constexpr long kRangeNotSatisfiable = 416;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct CleanCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// The SHA-256 that Hugging Face states of a large file: x-linked-etag: "<64 hex digits>".
size_t on_header(char* data, size_t size, size_t count, void* out) {
  constexpr std::string_view kKey = "x-linked-etag:";
  std::string line(data, size * count);
  for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t quote = line.find('"');
  if (line.starts_with(kKey) && quote != std::string::npos &&
      line.find('"', quote + 1) == quote + 65)
    *static_cast<std::string*>(out) = line.substr(quote + 1, 64);
  return size * count;
}

void configure(CURL* curl, const std::string& url, std::FILE* file, int64_t offset,
               std::string* stated, char* message) {
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(offset));
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, file);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, stated);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, isatty(STDERR_FILENO) ? 0L : 1L);
}

// Continues `part`; false when the server cannot continue there and the part must go.
bool fetch(const std::string& url, const fs::path& part, std::string* stated) {
  const int64_t offset = fs::exists(part) ? static_cast<int64_t>(fs::file_size(part)) : 0;
  const std::unique_ptr<CURL, CleanCurl> curl(curl_easy_init());
  File file(std::fopen(part.c_str(), "ab"));
  if (!curl) throw Error("libcurl: out of memory");
  if (!file) throw system_error("open " + part.string());
  char message[CURL_ERROR_SIZE] = "";
  configure(curl.get(), url, file.get(), offset, stated, message);
  const CURLcode code = curl_easy_perform(curl.get());
  if (std::fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0)
    throw system_error("write " + part.string());
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK) return true;
  const bool cannot_continue = code == CURLE_RANGE_ERROR || code == CURLE_BAD_DOWNLOAD_RESUME ||
                               status == kRangeNotSatisfiable;
  if (offset > 0 && cannot_continue) return false;
  std::string text = "download " + url + ": " + (message[0] ? message : curl_easy_strerror(code));
  if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT)
    text += "; without a network: rlk prepare --convert FILE";
  if (fs::file_size(part) == 0)
    fs::remove(part);
  else
    text +=
        "; what has arrived is kept in " + part.string() + ", and the same command continues it";
  throw Error(text);
}

}  // namespace

fs::path partial_download(const std::string& url, const fs::path& path) {
  return path.string() + "." + hex(sha256(url.data(), url.size())).substr(0, 8) + ".part";
}

std::string download(const std::string& url, const fs::path& path, const std::string& sha256) {
  const fs::path part = partial_download(url, path);
  std::string stated;
  if (!fetch(url, part, &stated)) {
    fs::remove(part);
    fetch(url, part, &stated);
  }
  const std::string expected = sha256.empty() ? stated : sha256;
  const std::string sum = hex(sha256_file(part));
  if (!expected.empty() && sum != expected) {
    fs::remove(part);
    throw Error("download " + url + ": SHA-256 is " + sum + ", must be " + expected +
                "; the file was removed");
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) throw system_error("rename " + part.string());
  return sum;
}

}  // namespace rlk
