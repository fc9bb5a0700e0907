#include "rlk/base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace rlk {
namespace {

std::string join(const std::vector<Diagnostic>& all) {
  std::string text;
  for (const Diagnostic& d : all) {
    if (!text.empty()) text += '\n';
    text += d.text();
  }
  return text;
}

}  // namespace

std::string Diagnostic::text() const {
  return where + ": " + what + (fix.empty() ? "" : "; " + fix);
}

InputError::InputError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(join(diagnostics)), diagnostics_(std::move(diagnostics)) {}

InputError::InputError(std::string where, std::string what, std::string fix)
    : InputError(std::vector<Diagnostic>{{std::move(where), std::move(what), std::move(fix)}}) {}

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
