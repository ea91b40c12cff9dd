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

// The first of the names that is loaded already, else the first that loads. Nothing is printed.
Library open_library(const std::vector<std::string>& names);

void* find_symbol(const Library& library, const char* name);  // nullptr if it is not there

template <class Function>
void find_function(const Library& library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(find_symbol(library, name));
}

// Finds functions that a driver cannot do without.
class NeededFunctions {
 public:
  explicit NeededFunctions(const Library& library) : library_(library) {}
  template <class Function>
  void operator()(const char* name, Function** function) {
    find_function(library_, name, function);
    if (*function == nullptr) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  const std::string& missing() const { return missing_; }  // names of those that are not there

 private:
  const Library& library_;
  std::string missing_;
};

// The folder of the file that this code was loaded from, with a final '/'; "" if that cannot be found out.
std::string own_folder();

}  // namespace flashwave
