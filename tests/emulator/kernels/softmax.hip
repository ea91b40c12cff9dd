// Rows of a softmax and of a layer norm, one workgroup each.
#include "gpu.h"

template <class Join>
DEVICE inline float over_group(float x, float* partial, Join join) {
  const int lane = lane_id(), wave = thread_x() / WAVE, waves = group_size() / WAVE;
  for (int step = WAVE / 2; step > 0; step /= 2) x = join(x, shuffle(x, lane ^ step));
  if (lane == 0) partial[wave] = x;
  barrier();
  x = partial[0];
  for (int i = 1; i < waves; i++) x = join(x, partial[i]);
  barrier();
  return x;
}

KERNEL void softmax(const float* in, float* out, int columns) {
  SHARED float partial[16];
  const float* row = in + (long)group_x() * columns;
  float* result = out + (long)group_x() * columns;
  float largest = -__builtin_inff();
  for (int i = thread_x(); i < columns; i += group_size()) largest = __builtin_fmaxf(largest, row[i]);
  largest = over_group(largest, partial, [](float a, float b) { return __builtin_fmaxf(a, b); });
  float sum = 0;
  for (int i = thread_x(); i < columns; i += group_size()) {
    sum += __builtin_amdgcn_exp2f((row[i] - largest) * 1.4426950408889634f);
  }
  sum = over_group(sum, partial, [](float a, float b) { return a + b; });
  for (int i = thread_x(); i < columns; i += group_size()) {
    result[i] = __builtin_amdgcn_exp2f((row[i] - largest) * 1.4426950408889634f) / sum;
  }
}

KERNEL void layer_norm(const half* in, const half* scale, half* out, int columns, float epsilon) {
  SHARED float partial[16];
  const half* row = in + (long)group_x() * columns;
  float sum = 0, squares = 0;
  for (int i = thread_x(); i < columns; i += group_size()) sum += (float)row[i];
  const auto add = [](float a, float b) { return a + b; };
  const float mean = over_group(sum, partial, add) / (float)columns;
  for (int i = thread_x(); i < columns; i += group_size()) squares += ((float)row[i] - mean) * ((float)row[i] - mean);
  const float variance = over_group(squares, partial, add) / (float)columns;
  const float factor = 1.f / __builtin_sqrtf(variance + epsilon);
  for (int i = thread_x(); i < columns; i += group_size()) {
    out[(long)group_x() * columns + i] = (half)(((float)row[i] - mean) * factor * (float)scale[i]);
  }
}
