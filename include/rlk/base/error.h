#pragma once
// The four kinds of errors (docs/architecture.md): bad input is collected as Diagnostics (exit 2),
// a failing device or system call throws Error (exit 1), a broken invariant aborts through
// RLK_CHECK, a failed gate is a verdict (exit 3). Thread-safe: nothing here keeps state.

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace rlk {

// Exit codes of every rlk command.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,     // the run failed
  kExitUsage = 2,      // bad usage, profile, input file or preflight
  kExitDifferent = 3,  // gates failed, or compared runs differ
  kExitInterrupted = 130,
};

// A device or system failure. `what()` names the call, the object and the system's message.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One defect of the user's input: where it is, what is wrong, what would be right.
struct Diagnostic {
  std::string where;  // "--tp", "profile.json:12: paths.model_root", "model.safetensors: tensor
                      // lm_head.weight"
  std::string what;   // "3", "missing", "offsets 10..4 run backwards"
  std::string fix;    // "must be 1, 2, 4 or 8"; may be empty
  std::string text() const;
};

// Bad input, all of it at once. Readers throw it; main prints one line per diagnostic and exits
// with 2.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Diagnostic> diagnostics);
  InputError(std::string where, std::string what, std::string fix = "");
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// Error for a failed system call: "open /x/y: No such file or directory" (reads errno).
Error system_error(const std::string& call_and_object);

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);

}  // namespace rlk

// RLK_CHECK(a == b, a, b): aborts with both values when an invariant of the program is broken.
#define RLK_CHECK(condition, ...)                                             \
  do {                                                                        \
    if (!(condition)) [[unlikely]] {                                          \
      std::ostringstream rlk_values_;                                         \
      ::rlk::detail::print_values(rlk_values_ __VA_OPT__(, ) __VA_ARGS__);    \
      ::rlk::check_failed(__FILE__, __LINE__, #condition, rlk_values_.str()); \
    }                                                                         \
  } while (false)

namespace rlk::detail {
inline void print_values(std::ostringstream&) {}
template <class First, class... Rest>
void print_values(std::ostringstream& out, const First& first, const Rest&... rest) {
  out << first;
  if constexpr (sizeof...(rest) > 0) out << ", ";
  print_values(out, rest...);
}
}  // namespace rlk::detail
