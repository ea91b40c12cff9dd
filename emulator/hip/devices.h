// The emulated GPUs of the process: those of FLASHWAVE_EMU_ARCH, and those that are added later. None ever goes.
#pragma once

#include <string>

#include "core/target.h"
#include "hip/abi.h"

namespace emu::hip {

int device_count();
const Target* device_target(int index);  // nullptr if there is no such device
hipError_t no_device();                  // says why there is none at all
std::string architectures();             // "gfx908, gfx90a, ..."

// The first device of that architecture, added if there is none; or always a new one. Fails for unknown architectures.
hipError_t open_device(const std::string& architecture, int* index);
hipError_t add_device(const std::string& architecture, int* index);

// The calling thread's device.
int current_device();
hipError_t set_current_device(int index);

// As a real one spells it, with the features it runs with: "gfx942:sramecc+:xnack-".
std::string target_id(const Target& target);

}  // namespace emu::hip
