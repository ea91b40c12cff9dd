// CUDA's half of src/device/gpu_driver.h, for one GPU.
#pragma once

#include <memory>

#include "device/cuda/cuda_api.h"
#include "device/gpu_driver.h"

namespace flashwave::cuda {

// device: of cuDeviceGet; capability: 90 is 9.0. What is referred to must live as long as the driver.
std::unique_ptr<GpuDriver> make_driver(const Api& api, int device, int capability, const CodeArchive& archive);

}  // namespace flashwave::cuda
