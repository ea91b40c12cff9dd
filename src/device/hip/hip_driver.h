// HIP's half of src/device/gpu_driver.h, for one GPU.
#pragma once

#include <memory>

#include "device/gpu_driver.h"
#include "device/hip/architectures.h"
#include "device/hip/hip_api.h"

namespace flashwave::hip {

// arch: nullptr if nothing is known about the GPU. What is referred to must live as long as the driver.
std::unique_ptr<GpuDriver> make_driver(const Api& api, int index, const Architecture* arch, const CodeArchive& archive);

}  // namespace flashwave::hip
