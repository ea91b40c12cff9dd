// How a GPU kernel is called: one argument, passed by value. A workgroup does one task; its number is
// blockIdx.y * gridDim.x + blockIdx.x, and workgroups with no task left return at once.
#pragma once

#include "kernels/abi/params.h"

namespace flashwave::abi {

struct GpuArguments {
  Params params;
  Schedule schedule;
  char* shared;   // by all workgroups: schedule.workspace_bytes of device memory
  char* scratch;  // schedule.scratch_bytes
};
static_assert(sizeof(GpuArguments) == sizeof(Params) + sizeof(Schedule) + 16);

// Workgroups of one row of the grid. A dimension holds fewer than 2^32 work-items on every GPU.
inline constexpr int64_t kTasksPerRow = int64_t{1} << 21;

}  // namespace flashwave::abi
