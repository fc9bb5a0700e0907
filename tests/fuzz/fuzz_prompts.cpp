#include "fuzz_input.h"
#include "rlk/data/prompts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const rlk::Tokenizer tokenizer(
      std::filesystem::path(RLK_SOURCE_DIR "/profiles/tiny/tokenizer.json"));
  return rlk::fuzz::refuse_or_take([&] {
    const rlk::PromptSet prompts(rlk::fuzz::view(data, size), "prompts.jsonl", {.max_tokens = 100},
                                 tokenizer);
    for (int64_t row = 0; row < prompts.rows(); ++row) prompts.tokens(row);
  });
}
