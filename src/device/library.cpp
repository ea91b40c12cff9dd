#include "device/library.h"

#include <dlfcn.h>

namespace flashwave {

Library open_library(const std::vector<std::string>& names) {
  Library library;
  for (const std::string& name : names) {
    // Local: its symbols must not stand in for those of another copy that the program has loaded.
    library.handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library.handle != nullptr) {
      library.name = name;
      library.error.clear();
      return library;
    }
    const char* said = dlerror();
    // The loader begins with the name itself.
    library.error += (library.error.empty() ? "" : "; ") + std::string(said != nullptr ? said : name.c_str());
  }
  return library;
}

void* find_symbol(const Library& library, const char* name) {
  void* symbol = dlsym(library.handle, name);
  if (symbol == nullptr) dlerror();  // leave no message behind
  return symbol;
}

std::string own_folder() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &self) == 0 || self.dli_fname == nullptr) return "";
  const std::string file = self.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

}  // namespace flashwave
