// What the workgroups of the decode kernel for NVIDIA GPUs (kernels/nvidia/decode.cu) leave for each other: results of
// parts of the keys, and flags that say they are there. Plain C++ for the host and the GPU.
#pragma once

#include "kernels/abi/partials.h"

#if defined(__CUDACC__)
#define FW_ABI_FN __attribute__((host, device, always_inline)) inline
#else
#define FW_ABI_FN __attribute__((always_inline)) inline
#endif

namespace flashwave::abi {

// A workgroup has an equal share of all tiles of keys, laid in one line; at the two ends of its share it may have a
// part of a unit (a sequence, key head and block of rows) that others have the rest of: 2 slots. With a number of
// splits given every workgroup has one part of one unit: 1 slot, and none if nothing is split.
struct DecodeParts {
  uint64_t* ready;  // [slot]: kReady while the part waits to be read, or kTaken
  float* sums;      // [slot][row]: reference m and l = sum of exp2(s - m), in pairs
  float* o;         // [slot][row][dim_v], sum of exp2(s - m) v
  int64_t bytes;

  FW_ABI_FN DecodeParts(char* base, int64_t slots, int64_t rows, int64_t dim_v) {
    Carver c{base};
    ready = c.take<uint64_t>(slots * 8);
    sums = c.floats(slots * rows * 2);
    o = c.floats(slots * rows * dim_v);
    bytes = c.used;
  }
};

// Parts of one unit at most: more workgroups are not started, and no more splits can be asked for.
inline constexpr int64_t kMostDecodeParts = 256;

// Not values that the memory has by accident: it need not be cleared before a launch. Whoever reads a part clears its
// flag, so that none is left behind. kTaken: the first part of a unit, when a workgroup has taken on to add its parts.
inline constexpr uint64_t kReady = 0xD1B54A32D192ED03u, kTaken = ~kReady;

FW_ABI_FN constexpr int64_t decode_slots(int64_t splits, int64_t tasks) {
  return splits == 0 ? 2 * tasks : splits == 1 ? 0 : tasks;
}
FW_ABI_FN constexpr int64_t decode_units(int64_t batch, int64_t heads_k, int64_t rows, int64_t rows_per_unit) {
  return batch * heads_k * (rows > rows_per_unit ? (rows + rows_per_unit - 1) / rows_per_unit : 1);
}

// Tiles of the keys that any query of a sequence sees: the last query sees the last key. One at the least, since
// results have to be written.
inline constexpr int kDecodeTileKeys = 16;
FW_ABI_FN constexpr int64_t decode_first_key(int64_t queries, int64_t keys, int64_t window_left) {
  const int64_t first = keys - queries - window_left;
  return queries <= 0 ? keys : first > 0 ? first : 0;
}
FW_ABI_FN constexpr int64_t decode_tiles(int64_t seen_keys) {
  return seen_keys > 0 ? (seen_keys + kDecodeTileKeys - 1) / kDecodeTileKeys : 1;
}

// Parts of each unit, where all have `tiles` tiles and that gives nearly every workgroup a part; else 0. least: tiles
// that are worth a workgroup.
template <class Int>
FW_ABI_FN constexpr Int decode_parts(Int tiles, Int units, Int most_workgroups, Int least) {
  const Int worth = (tiles * units + least - 1) / least;
  const Int workgroups = worth < most_workgroups ? worth : most_workgroups;
  const Int parts = workgroups / units;
  return parts * units * 16 >= workgroups * 15 ? parts : 0;
}

}  // namespace flashwave::abi

#undef FW_ABI_FN
