#include "fuzz_input.h"
#include "rlk/profile/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return rlk::fuzz::refuse_or_take(
      [&] { rlk::parse_profile(rlk::fuzz::view(data, size), "/p.json"); });
}
