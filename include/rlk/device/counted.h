#pragma once
// An Ops table that counts its calls: what the run directory's readback says about which kernels
// ran. Process-wide; one thread.

#include <cstdint>
#include <map>
#include <string>

#include "rlk/device/ops.h"

namespace rlk {

enum class OpsKind { strict, native };

// The same table with every op counted. At most one table of each kind a process.
const Ops& counted(const Ops& ops, OpsKind kind);

// Calls so far by op name, ops that ran at least once.
std::map<std::string, uint64_t> op_calls(OpsKind kind);

// From now on each op of the counted tables waits for itself and is timed: for profiles, not for
// runs. Seconds so far by op name.
void time_ops();
std::map<std::string, double> op_seconds(OpsKind kind);

}  // namespace rlk
