#pragma once
// Starts a program of the user's. No state.

#include <sys/types.h>

#include <string>
#include <vector>

namespace rlk {

// Runs argv[0] (found in PATH unless it has a slash) without a shell, with our environment and in
// our process group, with `in` and `out` as standard input and output (-1: ours). It dies with the
// calling thread; what it starts in its turn is left to whoever ends the group, as the launcher
// does with a rank's. A program that cannot be executed ends with code 127. Throws Error when the
// system has no process left.
pid_t start_process(std::vector<std::string> argv, int in, int out);

}  // namespace rlk
