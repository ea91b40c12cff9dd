// Shared libraries opened at run time.
#pragma once

#include <string>
#include <vector>

namespace flashwave {

struct Library {
  void* handle = nullptr;  // never closed: drivers leave threads behind
  std::string name;        // as it was found
  std::string error;       // if it was not: each name tried, and what the loader said
};

// The first of the names that loads. Nothing is printed.
Library open_library(const std::vector<std::string>& names);

void* find_symbol(const Library& library, const char* name);  // nullptr if it is not there

// The folder of the file that this code was loaded from, with a final '/'; "" if that cannot be found out.
std::string own_folder();

}  // namespace flashwave
