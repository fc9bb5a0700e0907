#pragma once
// Typed access to the JSON of a run directory: a missing or mistyped key is InputError with file
// and key. Header-only, stateless.

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "rlk/base/error.h"
#include "rlk/base/json.h"

namespace rlk {

// object[key] as T: bool, std::string, double (any number), int64_t, uint64_t or int (integers that
// fit), or Json (anything).
template <class T>
T json_field(const Json& object, const std::string& key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) {
    throw InputError(where, "key \"" + key + "\" is missing");
  }
  const Json& value = object.at(key);
  const auto wrong = [&](const char* expected) {
    return InputError(where, "\"" + key + "\" is " + value.dump().substr(0, 80), expected);
  };
  if constexpr (std::is_same_v<T, Json>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) throw wrong("must be true or false");
    return value.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) throw wrong("must be a string");
    return value.get<std::string>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) throw wrong("must be a number");
    return value.get<double>();
  } else {
    static_assert(std::is_integral_v<T>);
    const bool fits = value.is_number_unsigned()
                          ? std::in_range<T>(value.get<uint64_t>())
                          : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
    if (!fits)
      throw wrong(std::is_signed_v<T> ? "must be an integer" : "must be an integer of at least 0");
    return value.get<T>();
  }
}

}  // namespace rlk
