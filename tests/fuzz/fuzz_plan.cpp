#include "fuzz_input.h"
#include "rlk/plan/plan.h"

// A plan that is taken survives its own writing and reading.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return rlk::fuzz::refuse_or_take([&] {
    const rlk::Plan plan = rlk::plan_from_json(std::string(rlk::fuzz::view(data, size)));
    rlk::plan_from_json(rlk::plan_to_json(plan));
  });
}
