#include "fuzz_input.h"
#include "rlk/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return rlk::fuzz::refuse_or_take([&] {
    const rlk::Tokenizer tokenizer(rlk::fuzz::view(data, size), "tokenizer.json");
    const auto ids = tokenizer.encode("What is 12 + 7?\n\xc3\xa9 <|im_end|>");
    tokenizer.decode(ids);
  });
}
