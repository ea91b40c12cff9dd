// Sums and maxima over lanes and workgroups: LDS permute, swizzle, DPP and shared memory.
#include "gpu.h"

DEVICE inline float sum_by_shuffle(float x) {
  const int lane = lane_id();
  for (int step = WAVE / 2; step > 0; step >>= 1) x += shuffle(x, lane ^ step);
  return x;
}

KERNEL void sum_shuffle(const float* in, float* out, int n) {
  SHARED float partial[32];
  float x = 0;
  for (int i = global_x(); i < n;
       i += group_size() * __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())
    x += in[i];
  x = sum_by_shuffle(x);
  if (lane_id() == 0) partial[thread_x() / WAVE] = x;
  barrier();
  if (thread_x() < WAVE) {
    x = thread_x() < group_size() / WAVE ? partial[thread_x()] : 0.f;
    x = sum_by_shuffle(x);
    if (thread_x() == 0) out[group_x()] = x;
  }
}

template <int CONTROL, int ROWS, bool BOUND>
DEVICE inline int dpp(int x, int identity) {
  return __builtin_amdgcn_update_dpp(identity, x, CONTROL, ROWS, 0xf, BOUND);
}
// Within rows of 16 lanes DPP is the same on every target; across rows it is not.
DEVICE inline int max_by_dpp(int x) {
  const int lowest = -2147483647 - 1;
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  x = larger(x, dpp<0x111, 0xf, false>(x, lowest));  // row_shr:1
  x = larger(x, dpp<0x112, 0xf, false>(x, lowest));
  x = larger(x, dpp<0x114, 0xf, false>(x, lowest));
  x = larger(x, dpp<0x118, 0xf, false>(x, lowest));
#if WAVE == 64
  x = larger(x, dpp<0x142, 0xa, false>(x, lowest));  // row_bcast:15
  x = larger(x, dpp<0x143, 0xc, false>(x, lowest));  // row_bcast:31
#else
  x = larger(x, __builtin_amdgcn_permlanex16(x, x, -1, -1, false, false));
#endif
  return __builtin_amdgcn_readlane(x, WAVE - 1);
}
KERNEL void max_dpp(const int* in, int* out) {
  const int i = global_x();
  const int x = max_by_dpp(in[i]);
  if (lane_id() == 0) out[i / WAVE] = x;
}

KERNEL void sum_swizzle(const float* in, float* out) {
  float x = in[global_x()];
  x += bits_as<float>(__builtin_amdgcn_ds_swizzle(bits_as<int>(x), 0x041f));  // lane ^ 1
  x += bits_as<float>(__builtin_amdgcn_ds_swizzle(bits_as<int>(x), 0x081f));
  x += bits_as<float>(__builtin_amdgcn_ds_swizzle(bits_as<int>(x), 0x101f));
  x += bits_as<float>(__builtin_amdgcn_ds_swizzle(bits_as<int>(x), 0x201f));
  x += bits_as<float>(__builtin_amdgcn_ds_swizzle(bits_as<int>(x), 0x401f));
  if (lane_id() % 32 == 0) out[global_x() / 32] = x;
}

// A tree in shared memory, any power of two of threads.
KERNEL void sum_tree(const double* in, double* out) {
  SHARED double values[256];
  const int t = thread_x();
  values[t] = in[global_x()];
  for (int step = group_size() / 2; step > 0; step /= 2) {
    barrier();
    if (t < step) values[t] += values[t + step];
  }
  if (t == 0) out[group_x()] = values[0];
}
