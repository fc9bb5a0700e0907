// bench: kernels on this machine's GPU.

#include "arguments.h"
#include "rlk/bench/bench.h"

namespace rlk {

int bench_command(const Arguments& args) {
  CLI::App app("", "rlk bench");
  prepare_app(app,
              "rlk bench: verifies and times the CUDA kernels beside the device's copy ceiling");
  BenchOptions options;
  std::string csv, library;
  bool helped = false;
  app.add_option("--filter", options.filter, "only cases whose name contains TEXT")
      ->type_name("TEXT");
  app.add_option("--csv", csv, "write the rows here")->type_name("FILE");
  app.add_option("--library", library, "times of tests/bench/library.py to compare with")
      ->type_name("FILE");
  app.add_option("--device", options.device, "CUDA device")->type_name("N");
  const std::vector<Diagnostic> defects = parse_arguments(app, args, helped);
  if (helped) return kExitOk;
  if (!defects.empty()) throw InputError(defects);
  options.csv = csv;
  options.library = library;
  return bench_kernels(options);
}

}  // namespace rlk
