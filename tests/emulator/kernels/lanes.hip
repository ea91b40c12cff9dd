// Operations across the lanes of a wave. All kernels are launched with one wave of the target's size.
#include "gpu.h"

KERNEL void read_lanes(const int* in, int* out) {
  const int t = thread_x(), x = in[t];
  int* o = out + t * 8;
  o[0] = __builtin_amdgcn_readfirstlane(x);
  o[1] = __builtin_amdgcn_readlane(x, 5);
  o[2] = __builtin_amdgcn_readlane(x, __builtin_amdgcn_readfirstlane(x) & 31);
  o[3] = __builtin_amdgcn_ds_bpermute((t * 7 % WAVE) * 4, x);
  o[4] = __builtin_amdgcn_ds_permute((t * 5 % WAVE) * 4, x);
  o[5] = t % 3 == 0 ? __builtin_amdgcn_readfirstlane(x + 1) : -1;
  o[6] = lane_id();
  o[7] = t % 2 ? __builtin_amdgcn_ds_bpermute(((t + 2) % WAVE) * 4, x) : 0;
}
#define DPP(control, rows, banks, bound) __builtin_amdgcn_update_dpp(-7, x, control, rows, banks, bound)
KERNEL void dpp(const int* in, int* out) {
  const int t = thread_x(), x = in[t];
  int* o = out + t * 16;
  o[0] = DPP(0x1b, 0xf, 0xf, false);   // quad_perm:[3,2,1,0]
  o[1] = DPP(0x4e, 0xf, 0xf, true);    // quad_perm:[2,3,0,1]
  o[2] = DPP(0x101, 0xf, 0xf, false);  // row_shl:1
  o[3] = DPP(0x103, 0xf, 0xf, true);
  o[4] = DPP(0x112, 0xf, 0xf, false);  // row_shr:2
  o[5] = DPP(0x11f, 0xf, 0xf, true);
  o[6] = DPP(0x121, 0xf, 0xf, false);  // row_ror:1
  o[7] = DPP(0x128, 0x5, 0xf, false);
  o[8] = DPP(0x140, 0xf, 0xf, false);  // row_mirror
  o[9] = DPP(0x141, 0xf, 0x3, false);  // row_half_mirror
  o[10] = DPP(0x111, 0x3, 0xe, true);
#if WAVE == 64
  o[11] = DPP(0x130, 0xf, 0xf, false);  // wave_shl:1
  o[12] = DPP(0x138, 0xf, 0xf, true);   // wave_shr:1
  o[13] = DPP(0x142, 0xa, 0xf, false);  // row_bcast:15
  o[14] = DPP(0x143, 0xc, 0xf, false);  // row_bcast:31
  o[15] = __builtin_amdgcn_mov_dpp(x, 0x1b, 0xf, 0xf, true);
#else
  o[11] = DPP(0x153, 0xf, 0xf, false);  // row_share:3
  o[12] = DPP(0x165, 0xf, 0xf, false);  // row_xmask:5
  o[13] = __builtin_amdgcn_permlane16(x, x, 0x76543210, 0xfedcba98, false, false);
  o[14] = __builtin_amdgcn_permlanex16(x, x, 0x01234567, 0x89abcdef, false, false);
  o[15] = __builtin_amdgcn_mov_dpp8(x, 0xfac688 & 0xffffff);
#endif
}
#ifdef __gfx950__
KERNEL void swaps(const int* in, int* out) {
  const int t = thread_x();
  typedef uint uint2 __attribute__((ext_vector_type(2)));
  const uint2 a = __builtin_amdgcn_permlane32_swap((uint)in[t], (uint)in[t] + 1000, false, false);
  const uint2 b = __builtin_amdgcn_permlane16_swap((uint)in[t], (uint)in[t] + 1000, false, false);
  out[4 * t] = (int)a.x;
  out[4 * t + 1] = (int)a.y;
  out[4 * t + 2] = (int)b.x;
  out[4 * t + 3] = (int)b.y;
}
#endif
// A value that every lane agrees on is computed once, in scalar registers.
KERNEL void uniform(const int* in, int* out, int a, int b) {
  const int u = __builtin_amdgcn_readfirstlane(in[0]);
  int s = a * u + b;
  s = s > 100 ? s ^ b : s + (b << (u & 7));
  s += __builtin_popcount((uint)s) + __builtin_ctz((uint)s | 16) + (s >> 3) % 7;
  const long wide = (long)s * a * 1000003 + ((long)b << 20);
  for (int i = 0; i < (u & 15); i++) s = s * 3 + (int)(wide >> (i & 31));
  out[thread_x()] = s + in[thread_x()] + (int)__builtin_clzl((ulong)wide | 1);
}
