#pragma once
// Makes one system call of this process fail. The test programs are linked with --wrap for these
// calls, so the code under test has no hook of its own.

namespace rlk::test {

enum class Call { write, pwrite, fsync, rename };

// From construction to destruction: the `nth` (from 0) of the calls fails with `error`; a negative
// nth only counts.
class IoFault {
 public:
  IoFault(Call call, int nth, int error);
  ~IoFault();
  IoFault(const IoFault&) = delete;
  IoFault& operator=(const IoFault&) = delete;
  int calls() const;  // seen so far
};

}  // namespace rlk::test
