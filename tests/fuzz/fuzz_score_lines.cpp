#include <sstream>

#include "fuzz_input.h"
#include "rlk/data/score_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rlk::ModelConfig config;
  config.vocab = 1000;
  config.max_position = 64;
  std::istringstream lines(std::string(rlk::fuzz::view(data, size)));
  return rlk::fuzz::refuse_or_take([&] {
    rlk::read_score_lines(lines, "lines", config, RLK_SOURCE_DIR "/profiles/tiny/tokenizer.json");
  });
}
