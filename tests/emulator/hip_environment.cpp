// The devices of these tests; what else the caller has in its environment must not matter.
#include <cstdlib>
#include <initializer_list>

namespace {

const bool prepared = [] {
  setenv("FLASHWAVE_EMU_ARCH", "gfx942,gfx1100", 1);
  for (const char* name :
       {"FLASHWAVE_EMU_CHECK", "FLASHWAVE_EMU_CHECKS", "FLASHWAVE_EMU_COUNT", "FLASHWAVE_EMU_SEED"}) {
    unsetenv(name);
  }
  return true;
}();

}  // namespace
