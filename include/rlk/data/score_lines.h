#pragma once
// The lines that `rlk score` reads (docs/formats.md, "score and generate").

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "rlk/data/trajectory.h"
#include "rlk/profile/model_config.h"

namespace rlk {

// {"ids"} or {"text"}, and "prompt_len" -> samples whose response is what follows. The tokenizer is
// opened when a line has text. InputError names `source` and line of up to 20 defects.
std::vector<Sample> read_score_lines(std::istream& in, const std::string& source,
                                     const ModelConfig& config,
                                     const std::filesystem::path& tokenizer);

}  // namespace rlk
