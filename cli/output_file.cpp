#include "output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "errors.h"

namespace flashwave::cli {

void require_writable(const std::string& option, const std::string& path) {
  std::error_code ignored;
  const bool there = std::filesystem::exists(path, ignored);
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) {
    throw UsageError(option + " " + path + " cannot be written: " + std::strerror(errno));
  }
  if (!there) std::filesystem::remove(path, ignored);
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw std::runtime_error(option + " " + path + ": cannot be written");
}

}  // namespace flashwave::cli
