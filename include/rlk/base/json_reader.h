#pragma once
// Typed access to a JSON object from a user's file. Every defect is appended to a list of
// diagnostics with the path of the key ("profile.json: paths.model_root"), so that one reading
// reports all of them. Keeps references to the object and to the list; one thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/base/json.h"

namespace rlk {

class JsonReader {
 public:
  enum class Key { required, optional };  // an optional key may also be null

  // `value` must be an object; anything else is reported here and every later access finds nothing.
  // `path` is the object's own place in `file`, empty for the root.
  JsonReader(const Json& value, std::string file, std::string path, std::vector<Diagnostic>& out);

  // Each returns true and sets `value` when the key is there and right. Otherwise `value` is left
  // alone, and the defect, if it is one, is recorded.
  bool integer(const std::string& key, int64_t min, int64_t max, int64_t& value,
               Key = Key::required);
  bool number(const std::string& key, double min, double max, double& value, Key = Key::required);
  bool boolean(const std::string& key, bool& value, Key = Key::required);
  bool string(const std::string& key, std::string& value, Key = Key::required);
  bool one_of(const std::string& key, const std::vector<std::string>& allowed, std::string& value,
              Key = Key::required);
  bool strings(const std::string& key, std::vector<std::string>& value, Key = Key::required);

  const Json* find(const std::string& key, Key = Key::required);  // null when absent or JSON null
  // Reader of a nested object, which is empty when the key is absent.
  JsonReader object(const std::string& key, Key = Key::required);

  void fail(const std::string& key, std::string what, std::string fix = "");
  // Reports every key that no access has asked for, with the nearest one that was.
  void refuse_unknown_keys();

  std::string where(const std::string& key) const;
  const Json& value() const { return *object_; }

 private:
  bool wrong_type(const std::string& key, const Json& found, const std::string& expected);

  const Json* object_;
  std::string file_, path_;
  std::vector<Diagnostic>* out_;
  std::vector<std::string> known_;
};

// The candidate with the smallest edit distance to `name`, empty when none is close enough to be
// meant.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// A short, printable rendering of a JSON value for a message.
std::string shown(const Json& value);

}  // namespace rlk
