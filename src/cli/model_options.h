#pragma once
// What score and generate have in common: which model, on what, sampled how. Values are strings
// until read() judges them all.

#include <string>
#include <vector>

#include "arguments.h"
#include "rlk/worker/local.h"

namespace rlk {

class ModelOptions {
 public:
  void add_to(CommandLine&);
  // The model and how it computes; defects are appended.
  LocalModel model(std::vector<Diagnostic>& defects) const;
  SamplingParams sampling(std::vector<Diagnostic>& defects) const;

 private:
  std::string model_, profile_, backend_, threads_, temperature_ = "1", top_p_ = "1", top_k_ = "-1";
};

// --backend's value: auto takes the GPU where there is one. Otherwise a defect, and the CPU.
Backend backend_option(const std::string& text, std::vector<Diagnostic>& defects);

// An option's value as an integer in [min, max]; otherwise a defect, and `min`.
int64_t integer_option(const std::string& name, const std::string& text, int64_t min, int64_t max,
                       std::vector<Diagnostic>& defects);

}  // namespace rlk
