#include "fuzz_input.h"
#include "rlk/profile/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = rlk::fuzz::as_file("config.json", data, size);
  return rlk::fuzz::refuse_or_take([&] { rlk::read_model_config(file.parent_path()); });
}
