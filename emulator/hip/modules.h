// Loaded code objects and the kernels programs hold by handle.
#pragma once

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>

#include "core/program.h"
#include "hip/handles.h"

namespace emu::hip {

struct Module;

struct Function {
  std::weak_ptr<Module> module;
  const Kernel* kernel;
};

struct Module {
  std::unique_ptr<Program> program;
  int device = 0;
  std::mutex mutex;
  std::map<std::string, Function*> functions;  // those asked for so far

  ~Module();
};

Handles<Module>& modules();
Handles<Function>& functions();

// Held while a kernel runs, and by whoever takes something away from under it: freeing memory waits for the device.
std::shared_mutex& running();

}  // namespace emu::hip
