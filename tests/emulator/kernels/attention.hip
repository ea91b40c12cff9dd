// Attention with an online softmax: K and V tiles in LDS, matrix instructions, one wave per 16 queries. Computes
// S^T = K Q^T and O^T = V^T P^T, so that a lane keeps one query; on CDNA and gfx12 the layout of S^T's tile is that of
// P^T as a B operand already. Q, K, V, O: [heads][length][D]; grid: (queries / (16 * waves), heads).
#include "gpu.h"

#if defined(__GFX11__)
typedef half16 Fragment;
typedef float8 Tile;
#define OUTPUTS 8
DEVICE inline Tile multiply(Fragment a, Fragment b, Tile c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
}
DEVICE inline int first_k(int) { return 0; }
DEVICE inline int row_of(int lane, int i) { return 2 * i + lane / 16; }
#elif defined(__GFX12__)
typedef half8 Fragment;
typedef float8 Tile;
#define OUTPUTS 8
DEVICE inline Tile multiply(Fragment a, Fragment b, Tile c) {
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
}
DEVICE inline int first_k(int lane) { return lane / 16 * 8; }
DEVICE inline int row_of(int lane, int i) { return lane / 16 * 8 + i; }
#else
typedef half4 Fragment;
typedef float4 Tile;
#define OUTPUTS 4
DEVICE inline Tile multiply(Fragment a, Fragment b, Tile c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
DEVICE inline int first_k(int lane) { return lane / 16 * 4; }
DEVICE inline int row_of(int lane, int i) { return lane / 16 * 4 + i; }
#endif

DEVICE inline Fragment load_fragment(const half* p) {
  Fragment f;
  __builtin_memcpy(&f, p, sizeof f);
  return f;
}
// Joins the lanes that hold the same query.
DEVICE inline float other_rows(float x, int step) {
#if WAVE == 64
  return shuffle(x, lane_id() ^ step);
#else
  return bits_as<float>(
      __builtin_amdgcn_permlanex16(bits_as<int>(x), bits_as<int>(x), 0x76543210, 0xfedcba98, false, false));
#endif
}
DEVICE inline Fragment probabilities(Tile p) {
  Fragment f;
#if defined(__GFX11__)
  // The other half of the keys is in the other half of the wave, every second row each.
  const bool upper = lane_id() >= 16;
  for (int i = 0; i < 8; i++) {
    const float mine = p[i], other = other_rows(mine, 16);
    f[2 * i] = (half)(upper ? other : mine);
    f[2 * i + 1] = (half)(upper ? mine : other);
  }
#else
  for (int i = 0; i < OUTPUTS; i++) f[i] = (half)p[i];
#endif
  return f;
}

template <int D, int WAVES, bool CAUSAL>
DEVICE inline void attention(const half* q, const half* k, const half* v, half* o, float* lse, int length, int keys,
                             float scale) {
  constexpr int N = 32, kPadK = D + 8, kPadV = N + 8, kThreads = WAVES * WAVE;
  SHARED __attribute__((aligned(16))) half ks[N * kPadK];
  SHARED __attribute__((aligned(16))) half vs[D * kPadV];  // transposed
  const int t = thread_x(), lane = t % WAVE, wave = t / WAVE, column = lane % 16;
  const int first_query = (group_x() * WAVES + wave) * 16, query = first_query + column;
  const long head = group_y();
  const half* q_row = q + (head * length + (query < length ? query : length - 1)) * D;
  Fragment qf[D / 16];
#pragma unroll
  for (int i = 0; i < D / 16; i++) qf[i] = load_fragment(q_row + 16 * i + first_k(lane));
  Tile out[D / 16];
#pragma unroll
  for (int i = 0; i < D / 16; i++) out[i] = (Tile)(0.f);
  float largest = -__builtin_inff(), sum = 0;
  const float factor = scale * 1.4426950408889634f;
  int end = keys;
  if (CAUSAL) end = __builtin_elementwise_min(end, (group_x() + 1) * WAVES * 16 + keys - length);
  for (int k0 = 0; k0 < end; k0 += N) {
    for (int i = t; i < N * D / 8; i += kThreads) {
      const int key = i / (D / 8), d = i % (D / 8) * 8;
      half8 kv = (half8)(half)0, vv = (half8)(half)0;
      if (k0 + key < keys) {
        kv = *(const half8*)(k + (head * keys + k0 + key) * D + d);
        vv = *(const half8*)(v + (head * keys + k0 + key) * D + d);
      }
      *(half8*)&ks[key * kPadK + d] = kv;
#pragma unroll
      for (int j = 0; j < 8; j++) vs[(d + j) * kPadV + key] = vv[j];
    }
    barrier();
    Tile s[N / 16];
    float row_largest = largest;
#pragma unroll
    for (int b = 0; b < N / 16; b++) {
      s[b] = (Tile)(0.f);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        s[b] = multiply(load_fragment(&ks[(b * 16 + column) * kPadK + 16 * i + first_k(lane)]), qf[i], s[b]);
      }
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) {
        const int key = k0 + b * 16 + row_of(lane, i);
        const bool seen = key < keys && (!CAUSAL || key <= query + keys - length);
        s[b][i] = seen ? s[b][i] * factor : -__builtin_inff();
        row_largest = __builtin_fmaxf(row_largest, s[b][i]);
      }
    }
#if WAVE == 64
    row_largest = __builtin_fmaxf(row_largest, other_rows(row_largest, 32));
#endif
    row_largest = __builtin_fmaxf(row_largest, other_rows(row_largest, 16));
    const float base = row_largest == -__builtin_inff() ? 0.f : row_largest;
    const float rescale = __builtin_amdgcn_exp2f(largest - base);
    largest = row_largest;
    sum *= rescale;
#pragma unroll
    for (int i = 0; i < D / 16; i++) out[i] *= rescale;
#pragma unroll
    for (int b = 0; b < N / 16; b++) {
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) {
        s[b][i] = __builtin_amdgcn_exp2f(s[b][i] - base);
        sum += s[b][i];
      }
      const Fragment p = probabilities(s[b]);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        out[i] = multiply(load_fragment(&vs[(i * 16 + column) * kPadV + b * 16 + first_k(lane)]), p, out[i]);
      }
    }
    barrier();
  }
#if WAVE == 64
  sum += other_rows(sum, 32);
#endif
  sum += other_rows(sum, 16);
  if (query >= length) return;
  const float inverse = sum > 0 ? 1.f / sum : 0.f;
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++)
      o[(head * length + query) * D + i * 16 + row_of(lane, j)] = (half)(out[i][j] * inverse);
  }
  if (lane < 16) lse[head * length + query] = (largest + __builtin_amdgcn_logf(sum)) * 0.6931471805599453f;
}
#define ATTENTION(name, D, WAVES, CAUSAL)                                                                           \
  KERNEL BLOCK(WAVES* WAVE) void name(const half* q, const half* k, const half* v, half* o, float* lse, int length, \
                                      int keys, float scale) {                                                      \
    attention<D, WAVES, CAUSAL>(q, k, v, o, lse, length, keys, scale);                                              \
  }
ATTENTION(attention_64, 64, 4, false)
ATTENTION(attention_64_causal, 64, 4, true)
ATTENTION(attention_128, 128, 4, false)
