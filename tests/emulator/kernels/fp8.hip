// Conversions to and from 8-bit floats: FNUZ on gfx942, OCP on gfx950 and gfx1201.
#include "gpu.h"

#if defined(CDNA3_ON) || defined(__GFX12__)
KERNEL void to_fp8(const float* in, uint* out) {
  const int i = global_x();
  const float x = in[2 * i], y = in[2 * i + 1];
  int word = __builtin_amdgcn_cvt_pk_fp8_f32(x, y, 0, false);
  word = __builtin_amdgcn_cvt_pk_fp8_f32(y, x, word, true);
  out[2 * i] = (uint)word;
  word = __builtin_amdgcn_cvt_pk_bf8_f32(x, y, 0, false);
  word = __builtin_amdgcn_cvt_pk_bf8_f32(y, x, word, true);
  out[2 * i + 1] = (uint)word;
}
KERNEL void from_fp8(const uint* in, float* out) {
  const int i = global_x();
  const int w = (int)in[i];
  float* o = out + 12 * i;
  o[0] = __builtin_amdgcn_cvt_f32_fp8(w, 0);
  o[1] = __builtin_amdgcn_cvt_f32_fp8(w, 1);
  o[2] = __builtin_amdgcn_cvt_f32_fp8(w, 2);
  o[3] = __builtin_amdgcn_cvt_f32_fp8(w, 3);
  o[4] = __builtin_amdgcn_cvt_f32_bf8(w, 0);
  o[5] = __builtin_amdgcn_cvt_f32_bf8(w, 1);
  o[6] = __builtin_amdgcn_cvt_f32_bf8(w, 2);
  o[7] = __builtin_amdgcn_cvt_f32_bf8(w, 3);
  const float2 low = __builtin_amdgcn_cvt_pk_f32_fp8(w, false), high = __builtin_amdgcn_cvt_pk_f32_bf8(w, true);
  o[8] = low.x;
  o[9] = low.y;
  o[10] = high.x;
  o[11] = high.y;
}
#endif
