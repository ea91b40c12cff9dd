#include "hip/modules.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "core/errors.h"
#include "hip/bundle.h"
#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/memory_pool.h"

namespace emu::hip {

Module::~Module() {
  if (program != nullptr) memory_pool().remove_module(reinterpret_cast<u64>(program->image));
}

Handles<Module>& modules() {
  static auto& handles = *new Handles<Module>;
  return handles;
}

Handles<Function>& functions() {
  static auto& handles = *new Handles<Function>;
  return handles;
}

std::shared_mutex& running() {
  static auto& mutex = *new std::shared_mutex;
  return mutex;
}

namespace {

hipError_t load(hipModule_t* handle, const void* bytes, size_t size) {
  if (handle == nullptr) return null_argument("module");
  *handle = nullptr;
  if (bytes == nullptr) return null_argument("image");
  const int device = current_device();
  const Target* target = device_target(device);
  if (target == nullptr) return no_device();
  const Image image = find_image(bytes, size, *target);
  if (image.code.empty()) return fail(image.wrong_target ? hipErrorNoBinaryForGpu : hipErrorInvalidImage, image.error);
  auto module = std::make_shared<Module>();
  try {
    module->program = load_program(image.code.data(), image.code.size());
  } catch (const LoadError& error) {
    return fail(hipErrorInvalidImage, error.what());
  }
  module->device = device;
  memory_pool().add_module(reinterpret_cast<u64>(module->program->image), module->program->image_bytes, device);
  *handle = reinterpret_cast<hipModule_t>(modules().add(std::move(module)));
  return hipSuccess;
}

hipError_t invalid_module() { return fail(hipErrorInvalidHandle, "the module was unloaded, or never was one"); }

std::string names_of(const Program& program) {
  std::string names;
  for (const auto& [name, kernel] : program.kernels) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

}  // namespace
}  // namespace emu::hip

using namespace emu;
using namespace emu::hip;

hipError_t hipModuleLoad(hipModule_t* module, const char* file) {
  return guarded([&] {
    if (file == nullptr) return null_argument("file");
    std::ifstream in(file, std::ios::binary);
    if (!in) return fail(hipErrorFileNotFound, std::string(file) + " cannot be read");
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (bytes.empty()) return fail(hipErrorInvalidImage, std::string(file) + " is empty");
    return load(module, bytes.data(), bytes.size());
  });
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return guarded([&] { return load(module, image, 0); });
}

// The options are those of a just-in-time compiler, which code objects do not need.
hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, int*, void**) {
  return guarded([&] { return load(module, image, 0); });
}

hipError_t hipModuleUnload(hipModule_t handle) {
  return guarded([&] {
    const std::unique_lock lock(running());
    const std::shared_ptr<Module> module = modules().find(handle);
    if (module == nullptr) return invalid_module();
    modules().remove(handle);
    for (const auto& [name, function] : module->functions) functions().remove(function);
    return hipSuccess;
  });
}

hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t handle, const char* name) {
  return guarded([&] {
    if (function == nullptr) return null_argument("function");
    if (name == nullptr) return null_argument("name");
    const std::shared_ptr<Module> module = modules().find(handle);
    if (module == nullptr) return invalid_module();
    const auto found = module->program->kernels.find(name);
    if (found == module->program->kernels.end()) {
      return fail(hipErrorNotFound,
                  "the code object has no kernel '" + std::string(name) + "'; it has: " + names_of(*module->program));
    }
    const std::lock_guard lock(module->mutex);
    Function*& known = module->functions[name];
    if (known == nullptr) known = functions().add(std::make_shared<Function>(Function{module, &found->second}));
    *function = reinterpret_cast<hipFunction_t>(known);
    return hipSuccess;
  });
}

hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t handle, const char* name) {
  return guarded([&] {
    if (name == nullptr) return null_argument("name");
    const std::shared_ptr<Module> module = modules().find(handle);
    if (module == nullptr) return invalid_module();
    const auto found = module->program->globals.find(name);
    if (found == module->program->globals.end()) {
      return fail(hipErrorNotFound, "the code object has no variable '" + std::string(name) + "'");
    }
    if (address != nullptr) *address = module->program->image + found->second.first;
    if (bytes != nullptr) *bytes = found->second.second;
    return hipSuccess;
  });
}
