#pragma once
// `rlk tokenize`: JSON lines in, JSON lines out. One thread.

#include <iosfwd>
#include <string>

#include "rlk/data/tokenizer.h"

namespace rlk {

// Each line of `in`, {"text": "..."} -> {"ids": [...]}; with `decode`, {"ids": [...]} -> {"text":
// "..."}. InputError names `source` and the line; lines before it have been written.
void tokenize_lines(const Tokenizer& tokenizer, bool decode, std::istream& in,
                    const std::string& source, std::ostream& out);

}  // namespace rlk
