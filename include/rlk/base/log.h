#pragma once
// Logging through spdlog (header-only). `logger()` writes to stderr by default; workers prefix
// their rank.

#include <spdlog/spdlog.h>

#include <string>

namespace rlk {

// Sets the process-wide pattern: "HH:MM:SS.mmm [prefix] level text".
void init_logging(const std::string& prefix);

}  // namespace rlk
