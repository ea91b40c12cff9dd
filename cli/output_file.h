// Files that a long measurement writes at its end: whether they can be written is asked at its beginning.
#pragma once

#include <string>

namespace flashwave::cli {

// Throws a UsageError that names the option if the file cannot be written. Leaves what is there as it is.
void require_writable(const std::string& option, const std::string& path);
void write_file(const std::string& option, const std::string& path, const std::string& text);

}  // namespace flashwave::cli
