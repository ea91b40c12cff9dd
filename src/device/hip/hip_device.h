// AMD GPUs through a HIP runtime: real ones, and those of the emulator.
#pragma once

#include <string>
#include <vector>

#include "device/code_archive.h"
#include "device/driver.h"

namespace flashwave {

namespace hip {
struct Api;
}

// What the machine's HIP runtime has. `status` says why the list is empty.
struct HipDevices {
  Status status;
  std::vector<Device*> devices;
  const hip::Api* api = nullptr;  // set if there are devices
};
// Loads the runtime on the first call; the devices live as long as the process.
const HipDevices& hip_devices();
// The one that the calling thread has chosen (hipSetDevice), or the first.
Status current_hip_device(Device** device);
// False where it is plain that there is no AMD GPU, without loading anything.
bool may_have_hip_devices();

// The emulated GPU of that architecture ("gfx942"), made on the first call for it.
Status find_emulated_device(const std::string& arch, Device** device);
// One more, with other machine code than the library's own.
Status make_emulated_device(const std::string& arch, const CodeArchive& archive, Device** device);

}  // namespace flashwave
