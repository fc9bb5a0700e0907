#pragma once
// What every target does: give the bytes to a reader, which may refuse them with InputError alone.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "rlk/base/error.h"

namespace rlk::fuzz {

template <class Read>
int refuse_or_take(Read read) {
  try {
    read();
  } catch (const InputError&) {
  }
  return 0;
}

inline std::string_view view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// For readers of files: the bytes under `name` in a folder of this process's own.
inline std::filesystem::path as_file(const char* name, const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "rlk-fuzz-XXXXXX").string();
    return std::filesystem::path(::mkdtemp(pattern.data()));
  }();
  std::ofstream(folder / name, std::ios::binary) << view(data, size);
  return folder / name;
}

}  // namespace rlk::fuzz
