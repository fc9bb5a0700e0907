// bench: kernels on this machine's GPU, or the engines on a synthetic model.

#include "arguments.h"
#include "model_options.h"
#include "rlk/bench/bench.h"
#include "rlk/bench/decode.h"
#include "rlk/bench/engines.h"

namespace rlk {
namespace {

void add_kernel_options(CommandLine& line, BenchOptions& o, std::string& csv,
                        std::string& library) {
  const char* group = "Kernels";
  line.option("--filter", o.filter, "only cases whose name contains TEXT", "TEXT", group);
  line.option("--csv", csv, "write the rows here", "FILE", group);
  line.option("--library", library, "times of tests/bench/library.py to compare with", "FILE",
              group);
  line.option("--device", o.device, "CUDA device", "N", group);
}

// Of all engine benches.
void add_model_options(CommandLine& line, std::string& shape, std::string& backend) {
  const char* group = "Model";
  line.option("--shape", shape, "qwen3-0.6b ... qwen3-32b, or a config.json (qwen3-8b)", "SHAPE",
              group);
  line.option("--backend", backend, "auto, cpu or cuda (auto)", "NAME", group);
}

void add_engine_options(CommandLine& line, EngineBenchOptions& o) {
  const char* group = "Engines";
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    line.option(name, value, help, type, group);
  };
  option("--seed", o.seed, "of weights and tokens (0)", "N");
  option("--sequences", o.sequences, "sequences at once (8)", "N");
  option("--prompt", o.prompt, "prompt tokens of each (1)", "N");
  option("--response", o.response, "response tokens of each (511)", "N");
  option("--head-rows", o.head_rows, "rows of logits at once (8192)", "N");
  option("--activation-gib", o.activation_gib,
         "memory of activations that are kept; the others are recomputed (no limit)", "X");
  option("--repeat", o.repeat, "timed calls, of which the median counts (5)", "N");
  line.flag("--by-op", o.by_op, "seconds of each op, each waited for", group);
}

int bench_decode_command(const Arguments& args) {
  CommandLine line(
      "rlk bench decode",
      "rlk bench decode: the rollout engine's decode step on a synthetic model, its tokens "
      "verified, beside what the device's copy rate allows");
  DecodeBenchOptions o;
  std::string csv, backend = "auto";
  bool helped = false;
  add_model_options(line, o.shape, backend);
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    line.option(name, value, help, type);
  };
  option("--batch", o.batches, "sequences at once, a row of the table each (1,8,64)", "N,...");
  option("--context", o.context, "in the middle of the timed steps (1024)", "N");
  option("--steps", o.steps, "timed steps, a multiple of --look-ahead (64)", "N");
  option("--look-ahead", o.look_ahead, "steps before the host reads their tokens (8)", "N");
  option("--temperature", o.temperature, "of sampling (1)", "X");
  option("--top-p", o.top_p, "of sampling (1)", "X");
  option("--top-k", o.top_k, "of sampling (-1)", "N");
  line.flag("--profile", o.profile, "also the step with one op left out, op by op");
  option("--csv", csv, "write the rows here", "FILE");
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  o.backend = backend_option(backend, defects);
  o.csv = csv;
  return bench_decode(o, std::move(defects));
}

}  // namespace

int bench_command(const Arguments& args) {
  if (!args.empty() && args.front() == "decode")
    return bench_decode_command({args.begin() + 1, args.end()});
  CommandLine line(
      "rlk bench",
      "rlk bench [score|train|step|decode]: the engines on a synthetic model; without a name, "
      "the CUDA kernels, verified and timed beside the device's copy ceiling");
  BenchOptions kernels;
  EngineBenchOptions engines;
  std::string csv, library, backend = "auto";
  bool helped = false;
  line.option("engine", engines.what, "score, train or step", "");
  add_kernel_options(line, kernels, csv, library);
  add_model_options(line, engines.shape, backend);
  add_engine_options(line, engines);
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (!engines.what.empty()) {
    engines.backend = backend_option(backend, defects);
    return bench_engines(engines, std::move(defects));
  }
  if (!defects.empty()) throw InputError(defects);
  kernels.csv = csv;
  kernels.library = library;
  return bench_kernels(kernels);
}

}  // namespace rlk
