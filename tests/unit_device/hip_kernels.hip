// Kernels launched as the driver launches every kernel: one argument, one workgroup for each task.
#include "kernels/abi/gpu_launch.h"

using flashwave::abi::GpuArguments;

#define KERNEL extern "C" __attribute__((global))

// o[task * 64 + lane] = task * softmax_scale + lane; the first byte of shared and scratch says that they arrived.
KERNEL void driver_test_fill(GpuArguments a) {
  const auto lane = __builtin_amdgcn_workitem_id_x();
  const int64_t row = int64_t{__builtin_amdgcn_grid_size_x()} / 64 * __builtin_amdgcn_workgroup_id_y();
  const int64_t task = row + __builtin_amdgcn_workgroup_id_x();
  if (task >= a.schedule.tasks) return;
  static_cast<float*>(a.params.o.data)[task * 64 + lane] = static_cast<float>(task) * a.params.softmax_scale + lane;
  if (task == 0 && lane == 0 && a.shared != nullptr) *a.shared = 's';
  if (task == 0 && lane == 0 && a.scratch != nullptr) *a.scratch = 'c';
}

KERNEL void driver_test_uninitialised(GpuArguments a) {
  float value;
  asm volatile("v_mov_b32 %0, v100" : "=v"(value)::"v100");
  static_cast<float*>(a.params.o.data)[__builtin_amdgcn_workitem_id_x()] = value;
}

KERNEL void driver_test_large(GpuArguments) {}  // its row asks for more LDS than there is
