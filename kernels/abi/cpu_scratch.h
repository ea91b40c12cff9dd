// Memory layout of the CPU kernels' scratch: the kernels carve it up with these structs, the plan asks them for its
// size, so the two cannot disagree. Offsets start at `base`; pass nullptr to learn only `bytes`.
#pragma once

#include <cstdint>

#include "kernels/abi/partials.h"

namespace flashwave::abi {

#define FW_ALWAYS_INLINE inline __attribute__((always_inline))

inline constexpr int kKeyBlock = 96;    // keys packed at a time: a multiple of every tile's rows and of 8
inline constexpr int kQueryBlock = 96;  // backward: query rows of one tile of P^T: a multiple of every tile_q
// Of the gradient of a bias: a multiple of kQueryBlock, and of kKeyBlock. The sums, 288 KiB, stay in the second-level
// cache.
inline constexpr int kBiasGradientRows = 192, kBiasGradientKeys = 384;
inline constexpr int kDecodeKeyBlock = 64;
inline constexpr int kDecodeHeads = 16;  // most key heads of one decode task

// Register tile of a kernel: `rows` x 2 registers of `lanes` floats. Products take `per` numbers at a time, units of 32
// bits (kernels/cpu/products.h).
struct CpuTile {
  int lanes, rows, per;
  FW_ALWAYS_INLINE constexpr int columns() const { return 2 * lanes; }  // queries of a panel: the row's tile_q
  // Head dimension as it lies in strips: see Strips in kernels/cpu/tile.h.
  FW_ALWAYS_INLINE constexpr int strip_rows(int d) const { return (d + rows / 3 - 1) / (rows / 3) * (rows / 3); }
  FW_ALWAYS_INLINE constexpr int strip_ld() const { return kKeyBlock / per + lanes; }
  FW_ALWAYS_INLINE constexpr int units(int numbers) const { return (numbers + per - 1) / per; }
  FW_ALWAYS_INLINE constexpr int64_t panel_rows_bytes() const {
    return int64_t{columns()} * 32 + (lanes > 4 ? 4 * lanes : 16);
  }
  FW_ALWAYS_INLINE constexpr int64_t panel_state_bytes() const { return int64_t{columns()} * 8 + 4 * lanes; }
};
// `registers`: how many the instruction set has.
FW_ALWAYS_INLINE constexpr CpuTile cpu_tile(int tile_q, int registers, int per = 1) {
  return {tile_q / 2, registers == 32 ? 12 : 6, per};
}

struct ForwardScratch {
  float *q, *o;                // [panel][unit or dim][columns]
  float *s, *bias;             // [key][columns]
  float *k_groups, *v_strips;  // the packed block of keys
  char *rows, *states;         // PanelRows, PanelState per panel
  int64_t q_stride, o_stride;  // floats per panel
  int64_t bytes;

  FW_ALWAYS_INLINE ForwardScratch(char* base, CpuTile tile, int dim_qk, int dim_v, int64_t panels) {
    Carver c{base};
    const int n = tile.columns(), slack = tile.lanes;
    q_stride = int64_t{tile.units(dim_qk)} * n;
    o_stride = int64_t{tile.strip_rows(dim_v)} * n;
    q = c.floats(panels * q_stride);
    o = c.floats(panels * o_stride);
    s = c.floats(kKeyBlock * n);
    bias = c.floats(kKeyBlock * n);
    k_groups = c.floats(int64_t{kKeyBlock} * tile.units(dim_qk) + slack);
    v_strips = c.floats(int64_t{tile.strip_ld()} * tile.strip_rows(dim_v) + slack);
    rows = c.take<char>(panels * tile.panel_rows_bytes());
    states = c.take<char>(panels * tile.panel_state_bytes());
    bytes = c.used;
  }
};

struct DecodeScratch {
  float *q, *o, *s;  // [row][dim padded], [row][dim padded], [row][key]
  int q_stride, o_stride;
  int64_t bytes;

  FW_ALWAYS_INLINE DecodeScratch(char* base, CpuTile tile, int dim_qk, int dim_v) {
    Carver c{base};
    q_stride = (dim_qk + 31) / 32 * 32;  // whole pairs of registers
    o_stride = (dim_v + 31) / 32 * 32;
    q = c.floats(int64_t{tile.lanes} * q_stride);
    o = c.floats(int64_t{tile.lanes} * o_stride);
    s = c.floats(int64_t{tile.lanes} * kDecodeKeyBlock);
    bytes = c.used;
  }
};

// What the tasks of a backward leave for the end: the shares of dQ of each part of the keys, [split][row of the
// call][dim_qk], where they are cut into more than one range of parts, each the work of one task; and of the gradient
// of the slopes, [split][row of the call], where it is wanted.
struct BackwardShared {
  float *dq, *slopes;
  int64_t bytes;

  FW_ALWAYS_INLINE BackwardShared(char* base, int64_t total_rows, int64_t splits, int64_t ranges, int dim_qk,
                                  bool with_slopes) {
    Carver c{base};
    dq = c.floats(ranges > 1 ? splits * total_rows * dim_qk : 0);
    slopes = c.floats(with_slopes ? splits * total_rows : 0);
    if (ranges == 1) dq = nullptr;
    if (!with_slopes) slopes = nullptr;
    bytes = c.used;
  }
};

struct BackwardScratch {
  // The chunk of query rows: [panel][unit of the head dim][columns], and [block of kQueryBlock rows][column panel][unit
  // of rows][columns]; dQ is [panel][dim][columns].
  float *q_panels, *do_panels, *q_columns, *do_columns, *dq;
  float* dq_sum;  // over parts of the keys, where the task has them all and they are more than one
  float *neg_lse, *delta;
  float* d_slope;  // [row]: the gradient of the slope of the row's head
  char* rows;      // PanelRows
  // The packed block of keys.
  float *k_groups, *v_groups, *k_strips;
  // Tiles of weights and of gradients of scores: [key][unit of kQueryBlock rows], and the latter also as [unit of
  // keys][kQueryBlock], which is the same with one number to a unit.
  float *p, *ds, *ds_units;
  float *p_exact, *ds_exact;  // the same in fp32, while they are computed: p and ds, or [key][columns] of one panel
  float *bias, *chain;        // [key][columns]
  // Accumulators of the task's key blocks: [block][column panel][key][columns].
  float *dk, *dv;
  int64_t dq_stride;           // floats per panel
  int q_width, v_width;        // head dims rounded up to whole column panels
  int64_t dk_block, dv_block;  // floats per key block
  int64_t bytes;

  FW_ALWAYS_INLINE BackwardScratch(char* base, CpuTile tile, int dim_qk, int dim_v, int64_t chunk_rows,
                                   int64_t key_blocks, bool sums) {
    Carver c{base};
    const int n = tile.columns(), slack = tile.lanes;
    q_width = (dim_qk + n - 1) / n * n;
    v_width = (dim_v + n - 1) / n * n;
    dq_stride = int64_t{tile.strip_rows(dim_qk)} * n;
    dk_block = int64_t{kKeyBlock} * q_width;
    dv_block = int64_t{kKeyBlock} * v_width;
    q_panels = c.floats(chunk_rows * tile.units(dim_qk));
    do_panels = c.floats(chunk_rows * tile.units(dim_v));
    q_columns = c.floats(chunk_rows / tile.per * q_width);
    do_columns = c.floats(chunk_rows / tile.per * v_width);
    dq = c.floats(chunk_rows / n * dq_stride);
    dq_sum = c.floats(sums ? chunk_rows / n * dq_stride : 0);
    if (!sums) dq_sum = nullptr;
    neg_lse = c.floats(chunk_rows);
    delta = c.floats(chunk_rows);
    d_slope = c.floats(chunk_rows);
    rows = c.take<char>(chunk_rows / n * tile.panel_rows_bytes());
    k_groups = c.floats(int64_t{kKeyBlock} * tile.units(dim_qk) + slack);
    v_groups = c.floats(int64_t{kKeyBlock} * tile.units(dim_v) + slack);
    k_strips = c.floats(int64_t{tile.strip_ld()} * tile.strip_rows(dim_qk) + slack);
    p = c.floats(int64_t{kKeyBlock} * kQueryBlock / tile.per);
    ds = c.floats(int64_t{kKeyBlock} * kQueryBlock / tile.per);
    const bool rounds = tile.per > 1;
    ds_units = rounds ? c.floats(int64_t{kKeyBlock} * kQueryBlock / tile.per) : ds;
    p_exact = rounds ? c.floats(kKeyBlock * n) : p;
    ds_exact = rounds ? c.floats(kKeyBlock * n) : ds;
    bias = c.floats(kKeyBlock * n);
    chain = c.floats(kKeyBlock * n);
    dk = c.floats(key_blocks * dk_block);
    dv = c.floats(key_blocks * dv_block);
    bytes = c.used;
  }
};

// The gradient of a bias: one block of it is summed at a time.
struct BiasGradientScratch {
  BackwardScratch rows;
  float* sums;  // [panel][key][columns]
  int64_t sums_bytes, bytes;

  FW_ALWAYS_INLINE BiasGradientScratch(char* base, CpuTile tile, int dim_qk, int dim_v)
      : rows(base, tile, dim_qk, dim_v, kBiasGradientRows, 0, false) {
    Carver c{base, rows.bytes};
    sums_bytes = int64_t{kBiasGradientRows} * kBiasGradientKeys * 4;
    sums = c.take<float>(sums_bytes);
    bytes = c.used;
  }
};

#undef FW_ALWAYS_INLINE
}  // namespace flashwave::abi
