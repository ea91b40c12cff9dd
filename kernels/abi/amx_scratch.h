// Memory layout of the scratch of the AMX kernels (kernels/cpu/amx_*.h), as kernels/abi/cpu_scratch.h is for the others.
#pragma once

#include <cstdint>

#include "kernels/abi/cpu_scratch.h"

namespace flashwave::abi {

#define FW_ALWAYS_INLINE inline __attribute__((always_inline))

inline constexpr int kAmxSide = 32;           // rows and keys of a unit: 2 x 2 tiles of results
inline constexpr int kAmxUnit = 32 * 32;      // its numbers
inline constexpr int kAmxForwardUnits = 4;    // most units of keys in a job of the forward
inline constexpr int kAmxChunk = 1024;        // forward: keys packed at a time, for all rows of a task
inline constexpr int kAmxKeyStep = 128;       // parts of the keys start at multiples of this
inline constexpr int kAmxBackwardKeys = 64;   // backward: keys of a job
inline constexpr int kAmxBackwardRows = 256;  // and its query rows

// Head dimension in memory: tiles sum over 32 numbers of 16 bits at a time.
FW_ALWAYS_INLINE constexpr int amx_dim(int d) { return (d + 31) / 32 * 32; }

struct AmxForwardScratch {
  uint16_t* q;                 // [block of 32 rows][row][dim]
  float* o;                    // [block][row][dim]
  char *rows, *states;         // PanelRows, AmxRowState per block
  uint16_t *k, *v;             // the packed chunk: [unit][32 columns][2 tiles]
  float *k_length, *v_extent;  // per unit: the largest |k|, the largest number of v
  float *s, *junk;             // [unit][row][key]; where results that nobody needs are stored
  uint16_t* p[2];              // [unit][row][key], of two jobs
  uint32_t* kept;              // [unit][row], a bit per key
  int dq, dv;                  // padded
  int64_t bytes;

  static constexpr int64_t kStateBytes = kAmxSide * (64 + 4 + 4) + 64;

  FW_ALWAYS_INLINE AmxForwardScratch(char* base, int dim_qk, int dim_v, int64_t blocks) {
    Carver c{base};
    dq = amx_dim(dim_qk), dv = amx_dim(dim_v);
    s = c.floats(kAmxForwardUnits * kAmxUnit);
    p[0] = c.take<uint16_t>(kAmxForwardUnits * kAmxUnit * 2);
    p[1] = c.take<uint16_t>(kAmxForwardUnits * kAmxUnit * 2);
    junk = c.floats(kAmxUnit);
    kept = c.take<uint32_t>(kAmxForwardUnits * kAmxSide * 4);
    q = c.take<uint16_t>(blocks * kAmxSide * dq * 2);
    o = c.floats(blocks * kAmxSide * dv);
    rows = c.take<char>(blocks * cpu_tile(kAmxSide).panel_rows_bytes());
    states = c.take<char>(blocks * kStateBytes);
    k = c.take<uint16_t>(int64_t{kAmxChunk} * dq * 2);
    v = c.take<uint16_t>(int64_t{kAmxChunk} * dv * 2);
    k_length = c.floats(kAmxChunk / kAmxSide);
    v_extent = c.floats(kAmxChunk / kAmxSide);
    bytes = c.used;
  }
};

#undef FW_ALWAYS_INLINE
}  // namespace flashwave::abi
