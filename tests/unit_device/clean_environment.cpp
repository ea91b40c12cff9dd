// What the caller has in its environment must not matter.
#include <cstdlib>
#include <initializer_list>

namespace {

const bool cleaned = [] {
  for (const char* name : {"FLASHWAVE_HIP_LIBRARY", "FLASHWAVE_CUDA_LIBRARY", "FLASHWAVE_EMU_LIBRARY",
                           "FLASHWAVE_EMU_ARCH", "FLASHWAVE_EMU_CHECK", "FLASHWAVE_EMU_CHECKS"}) {
    unsetenv(name);
  }
  return true;
}();

}  // namespace
