#pragma once
// Whole-file helpers. Errors: Error for the system's, InputError where a user's file cannot be
// read.

#include <filesystem>
#include <string>
#include <string_view>

namespace rlk {

// Contents of a user's input file; InputError names the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Whether something has this name, a link that leads nowhere included. InputError where the system
// does not say.
bool is_there(const std::filesystem::path& path);

// Temporary beside the target, write, fsync, rename, fsync of the folder. Throws Error and removes
// the temporary on failure.
void write_file_atomic(const std::filesystem::path& path, std::string_view contents);

// One write(2) of the whole text to the end of the file (O_APPEND), fsync'd when `durable`.
void append_file(const std::filesystem::path& path, std::string_view contents,
                 bool durable = false);

}  // namespace rlk
