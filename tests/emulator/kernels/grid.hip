// Where a work-item is: ids in three dimensions and the sizes that hidden arguments and packets carry.
#include "gpu.h"

typedef unsigned short __attribute__((address_space(4))) * Shorts;
typedef unsigned int __attribute__((address_space(4))) * Words;

KERNEL void where(int* out) {
  const int sx = __builtin_amdgcn_workgroup_size_x(), sy = __builtin_amdgcn_workgroup_size_y(),
            sz = __builtin_amdgcn_workgroup_size_z();
  const int gx = __builtin_amdgcn_grid_size_x(), gy = __builtin_amdgcn_grid_size_y(),
            gz = __builtin_amdgcn_grid_size_z();
  const int x = group_x() * sx + thread_x(), y = group_y() * sy + thread_y(), z = group_z() * sz + thread_z();
  int* o = out + ((z * gy + y) * gx + x) * 12;
  o[0] = thread_x();
  o[1] = thread_y();
  o[2] = thread_z();
  o[3] = group_x();
  o[4] = group_y();
  o[5] = group_z();
  o[6] = sx;
  o[7] = sy;
  o[8] = sz;
  o[9] = gx;
  o[10] = gy;
  o[11] = gz;
}
// The same from memory: the packet and the hidden arguments of code object version 5.
KERNEL void packet(int* out, int explicit_argument) {
  const Shorts p = (Shorts)__builtin_amdgcn_dispatch_ptr();
  const Words grid = (Words)__builtin_amdgcn_dispatch_ptr();
  const Words hidden = (Words)__builtin_amdgcn_implicitarg_ptr();
  const Shorts sizes = (Shorts)__builtin_amdgcn_implicitarg_ptr();
  if (thread_x() + group_x() + group_y() + group_z() == 0) {
    out[0] = p[2];
    out[1] = p[3];
    out[2] = p[4];
    out[3] = (int)grid[3];
    out[4] = (int)grid[4];
    out[5] = (int)grid[5];
    out[6] = (int)hidden[0];
    out[7] = (int)hidden[1];
    out[8] = (int)hidden[2];
    out[9] = sizes[6];
    out[10] = sizes[7];
    out[11] = sizes[8];
    out[12] = sizes[9];   // remainders
    out[13] = sizes[32];  // dimensions of the grid
    out[14] = explicit_argument;
  }
}
