#include "run_dir/io_faults.h"

#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace {

bool armed = false;
rlk::test::Call armed_call;
int failing = -1, seen = 0, fault_errno = 0;

bool fails(rlk::test::Call call) {
  if (!armed || call != armed_call) return false;
  if (seen++ != failing) return false;
  errno = fault_errno;
  return true;
}

}  // namespace

extern "C" {
ssize_t __real_write(int, const void*, size_t);
ssize_t __real_pwrite(int, const void*, size_t, off_t);
int __real_fsync(int);
int __real_rename(const char*, const char*);

ssize_t __wrap_write(int fd, const void* data, size_t bytes) {
  return fails(rlk::test::Call::write) ? -1 : __real_write(fd, data, bytes);
}
ssize_t __wrap_pwrite(int fd, const void* data, size_t bytes, off_t at) {
  return fails(rlk::test::Call::pwrite) ? -1 : __real_pwrite(fd, data, bytes, at);
}
int __wrap_fsync(int fd) {
  return fails(rlk::test::Call::fsync) ? -1 : __real_fsync(fd);
}
int __wrap_rename(const char* from, const char* to) {
  return fails(rlk::test::Call::rename) ? -1 : __real_rename(from, to);
}
}

namespace rlk::test {

IoFault::IoFault(Call call, int nth, int error) {
  armed_call = call;
  failing = nth;
  fault_errno = error;
  seen = 0;
  armed = true;
}
IoFault::~IoFault() {
  armed = false;
}
int IoFault::calls() const {
  return seen;
}

}  // namespace rlk::test
