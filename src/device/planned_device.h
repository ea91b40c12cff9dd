// GPUs that are not here: what is known of them answers questions about plans. Nothing runs on them.
#pragma once

#include <string>
#include <string_view>

#include "device/driver.h"

namespace flashwave {

// "gfx942", "sm_90": an architecture alone, where "hip:0", "cuda:0" and "emu:gfx942" are devices.
bool names_architecture(std::string_view name);

// One device for each name, which lives as long as the process. Fails for an architecture nothing is known about.
Status find_planned_device(const std::string& name, Device** device);

// What is said to whoever wants to use it: memory, launches.
Status nothing_runs_on(const DeviceInfo& planned);

}  // namespace flashwave
