// Memory layout of the scratch of the AMX kernels (kernels/cpu/amx_*.h), as kernels/abi/cpu_scratch.h is for the
// others.
#pragma once

#include <cstdint>

#include "kernels/abi/cpu_scratch.h"

namespace flashwave::abi {

#define FW_ALWAYS_INLINE inline __attribute__((always_inline))

inline constexpr int kAmxSide = 32;         // rows and keys of a unit: 2 x 2 tiles of results
inline constexpr int kAmxUnit = 32 * 32;    // its numbers
inline constexpr int kAmxForwardUnits = 2;  // most units of keys in a job of the forward
inline constexpr int kAmxChunk =
    1024;  // forward: keys packed at a time, for all rows of a task; half as many in two parts
inline constexpr int kAmxKeyStep = 128;       // parts of the keys start at multiples of this
inline constexpr int kAmxBackwardKeys = 128;  // backward: keys of a job
inline constexpr int kAmxBackwardRows = 256;  // and its query rows

// Head dimension in memory: tiles sum over 32 numbers of 16 bits at a time.
FW_ALWAYS_INLINE constexpr int amx_dim(int d) { return (d + 31) / 32 * 32; }

struct AmxForwardScratch {
  // Numbers of fp16 may be two of bf16 each: "part".
  uint16_t* q;                 // [block of 32 rows][32 columns][part][row]
  float* o;                    // [block][32 columns][4 tiles]
  char *rows, *states;         // PanelRows, AmxRowState per block
  uint16_t *k, *v;             // the packed chunk: [unit][32 columns][part][2 tiles]
  float *k_length, *v_extent;  // per unit: the largest |k|, the largest number of v
  float *s, *junk;             // [unit][row][key]; where results that nobody needs are stored
  float* zeros;                // 4 tiles: what O begins with
  uint16_t* p[2];              // [unit][part][row][key], of two jobs
  uint32_t* kept;              // [unit][row], a bit per key
  int dq, dv;                  // padded
  int64_t bytes;

  static constexpr int64_t kStateBytes = kAmxSide * (64 + 4 + 4) + 64;

  FW_ALWAYS_INLINE AmxForwardScratch(char* base, int dim_qk, int dim_v, int64_t blocks, int parts) {
    Carver c{base};
    dq = amx_dim(dim_qk), dv = amx_dim(dim_v);
    s = c.floats(kAmxForwardUnits * kAmxUnit);
    p[0] = c.take<uint16_t>(kAmxForwardUnits * kAmxUnit * 2 * parts);
    p[1] = c.take<uint16_t>(kAmxForwardUnits * kAmxUnit * 2 * parts);
    junk = c.floats(kAmxUnit);
    zeros = c.floats(kAmxUnit);
    kept = c.take<uint32_t>(kAmxForwardUnits * kAmxSide * 4);
    q = c.take<uint16_t>(blocks * kAmxSide * dq * 2 * parts);
    o = c.floats(blocks * kAmxSide * dv);
    rows = c.take<char>(blocks * cpu_tile(kAmxSide, 32).panel_rows_bytes());
    states = c.take<char>(blocks * kStateBytes);
    k = c.take<uint16_t>(int64_t{kAmxChunk} * dq * 2);
    v = c.take<uint16_t>(int64_t{kAmxChunk} * dv * 2);
    k_length = c.floats(kAmxChunk / kAmxSide);
    v_extent = c.floats(kAmxChunk / kAmxSide);
    bytes = c.used;
  }
};

struct AmxDecodeScratch {
  uint16_t *q,
      *k;        // Q as B of a sum over the head dim: [32 columns][1 tile]; 16 keys whose rows cannot be read in place
  float *o, *s;  // [16 columns][row], [key][row]
  uint16_t *p, *v;  // [32 keys][row][key], [32 keys][32 columns][2 tiles]
  char* rows;       // PanelRows
  int dq, dv;       // padded
  int64_t bytes;

  FW_ALWAYS_INLINE AmxDecodeScratch(char* base, int dim_qk, int dim_v) {
    Carver c{base};
    constexpr int kRows = 16;
    dq = amx_dim(dim_qk), dv = amx_dim(dim_v);
    q = c.take<uint16_t>(kRows * dq * 2);
    k = c.take<uint16_t>(kRows * dq * 2);
    o = c.floats(kRows * dv);
    s = c.floats(kRows * kDecodeKeyBlock);
    p = c.take<uint16_t>(kRows * kDecodeKeyBlock * 2);
    v = c.take<uint16_t>(kDecodeKeyBlock * dv * 2);
    rows = c.take<char>(cpu_tile(kAmxSide, 32).panel_rows_bytes());
    bytes = c.used;
  }
};

struct AmxBackwardScratch {
  // The chunk of query rows, per unit of 32: as B of sums over the head dim, and of sums over the rows.
  uint16_t *q_transposed, *do_transposed, *q_pairs, *do_pairs;
  float* dq;                      // [unit][32 of dim][4 tiles]
  float* dq_sum;                  // over parts of the keys, [unit][dim][row]: as in BackwardScratch
  float *neg_lse, *delta;         // [row]
  float* d_slope;                 // [row]: the gradient of the slope of the row's head
  float* q_length;                // [unit], the largest |q|
  char* rows;                     // PanelRows per unit
  uint16_t *k, *v;                // a block of keys: [unit][32 columns][key]
  uint16_t* k_transposed;         // [unit][dim][key]
  float* k_length;                // [unit]
  float *s[2], *dp[2];            // [key][row]
  float *bias, *junk;             // the same
  uint16_t *p, *ds, *ds_pairs;    // [unit of keys][unit of rows][key][row]; the last as B of a sum over the keys
  float *dk, *dv;                 // [block of keys][unit][32 columns][4 tiles]
  bool *keys_begun, *rows_begun;  // whether there are sums yet: [block][unit], dk and dv; [unit], dq
  float* zeros;                   // 4 tiles: what sums begin with
  int dim_q, dim_v;               // padded
  int64_t dk_block, dv_block;
  int64_t bytes;

  FW_ALWAYS_INLINE AmxBackwardScratch(char* base, int dim_qk, int dim_v_, int64_t chunk_rows, int64_t key_blocks,
                                      bool sums, int parts) {
    Carver c{base};
    constexpr int kKeys = kAmxBackwardKeys, kKeyUnits = kKeys / kAmxSide;
    const int number = 2 * parts;  // bytes
    const int job = kKeys * kAmxBackwardRows * number;
    dim_q = amx_dim(dim_qk), dim_v = amx_dim(dim_v_);
    dk_block = int64_t{kKeys} * dim_q, dv_block = int64_t{kKeys} * dim_v;
    for (int i = 0; i < 2; ++i) s[i] = c.floats(kAmxUnit), dp[i] = c.floats(kAmxUnit);
    junk = c.floats(kAmxUnit);
    bias = c.floats(kAmxUnit);
    zeros = c.floats(kAmxUnit);
    p = c.take<uint16_t>(job);
    ds = c.take<uint16_t>(job);
    ds_pairs = c.take<uint16_t>(job);
    k = c.take<uint16_t>(kKeys * dim_q * number);
    v = c.take<uint16_t>(kKeys * dim_v * number);
    k_transposed = c.take<uint16_t>(kKeys * dim_q * number);
    k_length = c.floats(kKeyUnits);
    q_transposed = c.take<uint16_t>(chunk_rows * dim_q * number);
    do_transposed = c.take<uint16_t>(chunk_rows * dim_v * number);
    q_pairs = c.take<uint16_t>(chunk_rows * dim_q * number);
    do_pairs = c.take<uint16_t>(chunk_rows * dim_v * number);
    dq = c.floats(chunk_rows * dim_q);
    dq_sum = c.floats(sums ? chunk_rows * dim_q : 0);
    if (!sums) dq_sum = nullptr;
    neg_lse = c.floats(chunk_rows);
    delta = c.floats(chunk_rows);
    d_slope = c.floats(chunk_rows);
    q_length = c.floats(chunk_rows / kAmxSide);
    rows = c.take<char>(chunk_rows / kAmxSide * cpu_tile(kAmxSide, 32).panel_rows_bytes());
    dk = c.floats(key_blocks * dk_block);
    dv = c.floats(key_blocks * dv_block);
    keys_begun = c.take<bool>(key_blocks * kKeyUnits);
    rows_begun = c.take<bool>(chunk_rows / kAmxSide);
    bytes = c.used;
  }
};

#undef FW_ALWAYS_INLINE
}  // namespace flashwave::abi
