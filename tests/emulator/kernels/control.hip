// Divergence: loops of different lengths, switches, early returns, conditions over the wave.
#include "gpu.h"

KERNEL void collatz(const uint* in, uint* out, int n) {
  const int i = global_x();
  if (i >= n) return;
  uint x = in[i], steps = 0;
  while (x != 1) {
    x = x & 1 ? 3 * x + 1 : x / 2;
    steps++;
    if (steps > 500) break;
  }
  out[i] = steps;
}
KERNEL void switches(const int* in, int* out) {
  const int i = global_x();
  int x = in[i], sum = 0;
  for (int round = 0; round < 5; round++) {
    switch (x & 15) {
      case 0:
        sum += 1;
        [[fallthrough]];
      case 1:
        sum *= 3;
        break;
      case 2:
        sum ^= 0x55;
        break;
      case 3:
        if (sum > 100) continue;
        sum -= 7;
        break;
      case 5:
        sum += x;
        break;
      case 7:
        sum = -sum;
        break;
      case 8:
        out[i] = sum;
        return;
      case 11:
        sum <<= 1;
        break;
      case 13:
        round++;
        break;
      default:
        sum += 1000;
    }
    x = x / 3 + 1;
  }
  out[i] = sum;
}
KERNEL void nested(const int* in, int* out, int limit) {
  const int i = global_x();
  const int x = in[i];
  int sum = 0;
  for (int a = 0; a < (x & 7); a++) {
    for (int b = a; b < limit; b++) {
      if ((a + b + x) % 5 == 0) continue;
      if (b > (x >> 3 & 15)) break;
      for (int c = 0; c < (b & 3); c++) sum += a * b + c;
    }
    if (sum > 5000) goto out_of_loops;
  }
  sum += 7;
out_of_loops:
  out[i] = sum;
}
KERNEL void ballots(const int* in, ulong* out) {
  const int x = in[global_x()];
  ulong odd, any_large = 0;
#if WAVE == 64
  odd = __builtin_amdgcn_ballot_w64(x & 1);
#else
  odd = __builtin_amdgcn_ballot_w32(x & 1);
#endif
  if (x & 1) {
#if WAVE == 64
    any_large = __builtin_amdgcn_ballot_w64(x > 50);  // of the odd ones only
#else
    any_large = __builtin_amdgcn_ballot_w32(x > 50);
#endif
  }
  out[2 * global_x()] = odd;
  out[2 * global_x() + 1] = any_large;
}
// Some waves leave before the others meet at a barrier that only those reach.
KERNEL void early_exit(const int* in, int* out, int waves) {
  SHARED int sum[32];
  const int wave = thread_x() / WAVE;
  if (wave < waves) {
    const int first = __builtin_amdgcn_readfirstlane(in[global_x()]);
    if (lane_id() == 0) sum[wave] = first;
  }
  barrier();
  if (wave > 0) return;
  int total = 0;
  for (int i = 0; i < waves; i++) total += sum[i];
  out[global_x()] = total;
}
