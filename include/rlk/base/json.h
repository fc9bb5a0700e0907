#pragma once
// JSON in and out through nlohmann_json, with what a reader of users' files needs on top: positions and duplicate keys.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rlk {

using Json = nlohmann::ordered_json;  // keeps key order, so that written files are byte-stable

// Parses a user's text. InputError "file:line:column: what" on malformed JSON, invalid UTF-8, a duplicate key, or nesting deeper than 64.
Json parse_json(std::string_view text, const std::string& file);

}  // namespace rlk
