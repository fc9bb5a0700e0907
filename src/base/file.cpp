#include "rlk/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rlk/base/error.h"

namespace rlk {
namespace {

// Closes a descriptor on every path; close() itself is checked where a late write error matters.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// Removes a file unless told that it has become the real one.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

constexpr off_t kLargestRead = off_t{4} << 30;  // what is read whole must fit into memory

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("write " + path);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void sync_folder(const std::filesystem::path& folder) {
  Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw system_error("open " + folder.string());
  if (::fsync(fd.get()) != 0) throw system_error("fsync " + folder.string());
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const auto fail = [&] { throw InputError(path.string(), std::strerror(errno)); };
  // O_NONBLOCK: a named pipe in the place of a file must not hang the reader.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail();
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail();
  if (!S_ISREG(info.st_mode)) throw InputError(path.string(), "not a regular file");
  if (info.st_size > kLargestRead)
    throw InputError(path.string(), std::to_string(info.st_size) + " bytes",
                     "must be at most " + std::to_string(kLargestRead));

  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail();
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  text.resize(filled);
  return text;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code code;
  const std::filesystem::file_type type = std::filesystem::symlink_status(path, code).type();
  if (type == std::filesystem::file_type::none) throw InputError(path.string(), code.message());
  return type != std::filesystem::file_type::not_found;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view contents) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::string name = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  Descriptor fd(::mkostemp(name.data(), O_CLOEXEC));
  if (fd.get() < 0) throw system_error("create a temporary file for " + path.string());
  Temporary temporary(name);

  write_all(fd.get(), contents, name);
  // mkostemp makes files private; a run directory is readable by whoever the umask lets in.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(fd.get(), 0666 & ~mask) != 0) throw system_error("fchmod " + name);
  if (::fsync(fd.get()) != 0) throw system_error("fsync " + name);
  if (fd.close() != 0) throw system_error("close " + name);
  if (::rename(name.c_str(), path.c_str()) != 0) throw system_error("rename to " + path.string());
  temporary.keep();
  sync_folder(folder);
}

void append_file(const std::filesystem::path& path, std::string_view contents, bool durable) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (fd.get() < 0) throw system_error("open " + path.string());
  write_all(fd.get(), contents, path.string());
  if (durable && ::fsync(fd.get()) != 0) throw system_error("fsync " + path.string());
  if (fd.close() != 0) throw system_error("close " + path.string());
}

}  // namespace rlk
