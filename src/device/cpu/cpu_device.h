// The host CPU as a device.
#pragma once

#include "device/driver.h"

namespace flashwave {

Device& cpu_device();  // lives as long as the process

}  // namespace flashwave
