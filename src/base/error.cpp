#include "rlk/base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace rlk {

Error system_error(const std::string& call_and_object) {
  return Error(call_and_object + ": " + std::strerror(errno));
}

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "rlk: broken invariant at %s:%d: %s (%s)\n", file, line, expression,
               values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace rlk
