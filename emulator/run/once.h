// One run of a launch in one order of waves; core/launch.h is what others call.
#pragma once

#include "core/launch.h"

namespace emu {

LaunchResult run_once(const Program& program, const Kernel& kernel, const LaunchShape& shape, const void* arguments,
                      size_t argument_bytes, std::vector<Region> memory, const RunOptions& options);

}  // namespace emu
