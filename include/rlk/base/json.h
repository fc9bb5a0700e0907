#pragma once
// JSON in and out through nlohmann_json, with what a reader of users' files needs on top: positions
// and duplicate keys.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rlk {

using Json = nlohmann::ordered_json;  // keeps key order, so that written files are byte-stable

// Parses a user's text. InputError "file:line:column: what" on malformed JSON, invalid UTF-8, a
// duplicate key, or nesting deeper than 64. `first_line` is the number of the first line in the
// file that the text is a part of.
Json parse_json(std::string_view text, const std::string& file, size_t first_line = 1);

}  // namespace rlk
