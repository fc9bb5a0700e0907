#pragma once
// The gates, one function each. They throw InputError (or Error) for evidence that cannot be read;
// validate_run turns that into a failed gate. Private to src/gate.

#include "facts.h"
#include "rlk/gate/gates.h"
#include "rlk/run/run_reader.h"

namespace rlk {

// What a gate reads, and the result that it fills: name and evidence path are set already.
struct Run {
  const RunReader& reader;
  const Facts& facts;
};

// The first defect decides the verdict's text; the gate goes on only to count.
inline void fail(GateResult* result, const std::string& detail, const std::string& evidence = "") {
  if (result->verdict == Verdict::fail) return;
  result->verdict = Verdict::fail;
  result->detail = detail;
  if (!evidence.empty()) result->evidence = evidence;
}

// Every gate starts from pass with the detail of success filled at its end.
using GateFunction = void (*)(const Run&, GateResult*);

void gate_steps(const Run&, GateResult*);
void gate_ranks(const Run&, GateResult*);
void gate_metrics(const Run&, GateResult*);
void gate_logprobs(const Run&, GateResult*);
void gate_samples(const Run&, GateResult*);
void gate_kernels(const Run&, GateResult*);
void gate_graphs(const Run&, GateResult*);
void gate_rollout_weights(const Run&, GateResult*);
void gate_manifest(const Run&, GateResult*);
void gate_gradient(const Run&, GateResult*);
void gate_learning_rate(const Run&, GateResult*);
void gate_weights_changed(const Run&, GateResult*);

}  // namespace rlk
