#pragma once
// What the manifest says about the binary and the machine. Reads the system, keeps no state;
// thread-safe.

#include <string>

#include "rlk/base/json.h"

namespace rlk {

Json source_inventory();       // revision, dirty
Json build_inventory();        // version, compiler, type, flags, cuda
Json host_inventory();         // host, kernel, cpu, cores, memory_bytes
Json environment_inventory();  // the variables named RLK_*, CUDA_*, NCCL_*, OMP_*, sorted
std::string utc_now();         // 2026-01-31T23:59:59Z

}  // namespace rlk
