#pragma once

#include <stdexcept>
#include <string>

namespace emu {

// A code object that cannot be loaded: not one for AMD GPUs, damaged, or with instructions that are not known.
struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The kernel cannot go on: a jump to nowhere, a trap, a mode that is not modelled.
struct ExecutionError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace emu
