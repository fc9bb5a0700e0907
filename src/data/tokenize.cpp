#include "rlk/data/tokenize.h"

#include <istream>
#include <ostream>

#include "rlk/base/error.h"
#include "rlk/base/json_reader.h"

namespace rlk {
namespace {

std::string text_of(JsonReader& reader) {
  std::string text;
  reader.string("text", text);
  return text;
}

std::vector<int32_t> ids_of(JsonReader& reader, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const Json* list = reader.find("ids");
  if (list == nullptr) return ids;
  if (!list->is_array()) {
    reader.fail("ids", shown(*list), "must be an array of token ids");
    return ids;
  }
  for (const Json& id : *list) {
    const bool known = id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX &&
                       !tokenizer.token_bytes(id.get<int32_t>()).empty();
    if (!known) {
      reader.fail("ids[" + std::to_string(ids.size()) + "]", shown(id),
                  "must be the id of a token");
      break;
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

void tokenize_lines(const Tokenizer& tokenizer, bool decode, std::istream& in,
                    const std::string& source, std::ostream& out) {
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    const std::string where = source + ":" + std::to_string(number);
    const Json object = parse_json(line, source, number);
    std::vector<Diagnostic> defects;
    JsonReader reader(object, where, "", defects);
    const std::string text = decode ? "" : text_of(reader);
    const std::vector<int32_t> ids = decode ? ids_of(reader, tokenizer) : std::vector<int32_t>();
    reader.refuse_unknown_keys();
    if (!defects.empty()) throw InputError(defects);
    if (decode) {
      out << Json{{"text", tokenizer.decode(ids)}}.dump() << '\n';
    } else {
      out << Json{{"ids", tokenizer.encode(text, reader.where("text"))}}.dump() << '\n';
    }
  }
}

}  // namespace rlk
