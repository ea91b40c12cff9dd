#include "device/library.h"

#include <dlfcn.h>

namespace flashwave {

Library open_library(const std::vector<std::string>& names) {
  Library library;
  // A second copy of a driver's library in one process has devices, streams and memory of its own. So one that the
  // program has loaded comes first, whatever else there is: PyTorch carries its own HIP runtime.
  for (const std::string& name : names) {
    library.handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (library.handle != nullptr) {
      library.name = name;
      return library;
    }
    dlerror();  // leave no message behind
  }
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
