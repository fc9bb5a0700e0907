#pragma once
// Ops tables that count their calls: what the run directory's readback says about which kernel
// served which op of which module. Process-wide; one thread.

#include <cstdint>
#include <map>
#include <string>

#include "rlk/device/ops.h"

namespace rlk {

// The modules of --modules, and the work of none of them: loading, audit.
enum class OpModule { attention, ffn, logp, run };

// `ops` with every call counted under `module`; an entry that is not `strict`'s own counts as
// native. At most one table a module in a process.
const Ops& counted(const Ops& ops, const Ops& strict, OpModule module);

struct OpCount {
  std::string implementation;  // "cuda", "cublaslt"
  bool strict = true;
  uint64_t calls = 0;
  double seconds = 0;  // 0 unless ops are timed
};

// By "module.op": ops called at least once. A call recorded into a graph counts once; its replays
// are counted by the engine.
std::map<std::string, OpCount> op_counts();

// From now on each op of the counted tables waits for itself and is timed: for profiles, not for
// runs.
void time_ops();

}  // namespace rlk
