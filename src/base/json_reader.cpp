#include "rlk/base/json_reader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rlk/base/text.h"

namespace rlk {
namespace {

const Json kEmptyObject = Json::object();

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 64;  // longer than every name that exists: nothing is near
  if (name.size() > kLongestName) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 2);
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance || (best.empty() && distance == best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string shown(const Json& value) {
  constexpr size_t kLimit = 48;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kLimit ? text : text.substr(0, kLimit) + "...";
}

JsonReader::JsonReader(const Json& value, std::string file, std::string path,
                       std::vector<Diagnostic>& out)
    : object_(&value), file_(std::move(file)), path_(std::move(path)), out_(&out) {
  if (value.is_object()) return;
  out_->push_back(
      {path_.empty() ? file_ : file_ + ": " + path_, shown(value), "must be an object"});
  object_ = &kEmptyObject;
}

std::string JsonReader::where(const std::string& key) const {
  return file_ + ": " + (path_.empty() ? "" : path_ + ".") + printable(key);
}

void JsonReader::fail(const std::string& key, std::string what, std::string fix) {
  out_->push_back({where(key), std::move(what), std::move(fix)});
}

const Json* JsonReader::find(const std::string& key, Key need) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  const auto it = object_->find(key);
  if (it != object_->end() && (!it->is_null() || need == Key::required)) return &*it;
  if (need == Key::required && object_ != &kEmptyObject) fail(key, "missing");
  return nullptr;
}

bool JsonReader::wrong_type(const std::string& key, const Json& found,
                            const std::string& expected) {
  fail(key, shown(found), "must be " + expected);
  return false;
}

bool JsonReader::integer(const std::string& key, int64_t min, int64_t max, int64_t& value,
                         Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  const std::string range = "an integer from " + std::to_string(min) + " to " + std::to_string(max);
  if (!found->is_number_integer()) return wrong_type(key, *found, range);
  // An unsigned value past int64's range would wrap in get<int64_t>().
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return wrong_type(key, *found, range);
  const auto number = found->get<int64_t>();
  if (number < min || number > max) return wrong_type(key, *found, range);
  value = number;
  return true;
}

bool JsonReader::number(const std::string& key, double min, double max, double& value, Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  const std::string range = "a number from " + shown(min) + " to " + shown(max);
  if (!found->is_number()) return wrong_type(key, *found, range);
  const auto number = found->get<double>();
  if (!std::isfinite(number) || number < min || number > max) return wrong_type(key, *found, range);
  value = number;
  return true;
}

bool JsonReader::boolean(const std::string& key, bool& value, Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  if (!found->is_boolean()) return wrong_type(key, *found, "true or false");
  value = found->get<bool>();
  return true;
}

bool JsonReader::string(const std::string& key, std::string& value, Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  if (!found->is_string()) return wrong_type(key, *found, "a string");
  value = found->get<std::string>();
  return true;
}

bool JsonReader::one_of(const std::string& key, const std::vector<std::string>& allowed,
                        std::string& value, Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  const bool right = found->is_string() && std::find(allowed.begin(), allowed.end(),
                                                     found->get<std::string>()) != allowed.end();
  if (!right) return wrong_type(key, *found, join_choices(allowed));
  value = found->get<std::string>();
  return true;
}

bool JsonReader::strings(const std::string& key, std::vector<std::string>& value, Key need) {
  const Json* found = find(key, need);
  if (found == nullptr) return false;
  const bool right =
      found->is_array() &&
      std::all_of(found->begin(), found->end(), [](const Json& item) { return item.is_string(); });
  if (!right) return wrong_type(key, *found, "an array of strings");
  value = found->get<std::vector<std::string>>();
  return true;
}

JsonReader JsonReader::object(const std::string& key, Key need) {
  const Json* found = find(key, need);
  return {found != nullptr ? *found : kEmptyObject, file_, (path_.empty() ? "" : path_ + ".") + key,
          *out_};
}

void JsonReader::refuse_unknown_keys() {
  for (const auto& [key, unused] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    fail(key, "unknown key", near.empty() ? "" : "the nearest known key is " + near);
  }
}

}  // namespace rlk
