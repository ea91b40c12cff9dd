// NVIDIA GPUs through their driver.
#pragma once

#include <vector>

#include "device/driver.h"

namespace flashwave {

// What the machine has. `status` says why the list is empty.
struct CudaDevices {
  Status status;
  std::vector<Device*> devices;
};
// Loads the driver on the first call; the devices live as long as the process.
const CudaDevices& cuda_devices();
// False where it is plain that there is no NVIDIA GPU, without loading anything.
bool may_have_cuda_devices();

}  // namespace flashwave
