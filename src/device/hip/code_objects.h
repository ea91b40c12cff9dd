// Machine code of AMD GPU kernels, compiled with the library and found by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flashwave {

struct CodeObject {
  const char* kernel;  // its name in the catalog and in the code object
  const char* arch;    // "gfx942"
  const void* image;   // several kernels may share one
  size_t bytes;
  int32_t threads;      // of a workgroup
  int32_t dynamic_lds;  // bytes beside those the kernel declares
};

// nullptr if the kernel was not compiled for that architecture.
const CodeObject* find_code_object(std::string_view kernel, std::string_view arch);

bool has_code_objects(std::string_view arch);  // any kernel at all

// Adds a row for tests of the driver. It must live as long as the process.
void add_code_object_for_test(const CodeObject* row);

}  // namespace flashwave
