// The tensor maps (kernels/abi/tensor_map.h) of q, k, v, o and the bias: how their numbers and the coordinates that
// kernels use fit together. src/plan/tensor_maps.cpp describes them.
//
// Tiles end with their sequence, wherever that lies, with one map per tensor. Dimensions, innermost first:
//   columns    dim      2 bytes       columns past the head dim read 0
//   rows       N        row stride    N = longest sequence, or a page
//   heads      heads    head stride
//   fine       2^30     16 bytes      fine and coarse: an offset of any multiple of 16 bytes, modulo 2^64
//   coarse     2^30     2^34 bytes
// Row r of a sequence of `rows` rows has row coordinate N - rows + r, and the offset is that of the sequence less N -
// rows rows (MapPlace): r = rows is out of bounds, so it reads 0 and is not written. No byte after the sequence is
// touched.
// The bias has a map of the same kind, whose columns are keys and whose rows are queries; it does not end with
// sequences, as its own extents are those of the longest.
#pragma once

#include <cstdint>

#include "kernels/abi/params.h"
#include "kernels/abi/tensor_map.h"

namespace flashwave::abi {

struct TensorMaps {
  TensorMap q, k, v, o;  // a backward has d_o in the place of o
  TensorMap bias;        // of kernels with kNeedsBiasMap; the others are given the first four
};
static_assert(sizeof(TensorMaps) == 5 * 128 && alignof(TensorMaps) == 64);

// 128 bytes: as wide as the swizzle. A tile of more columns is loaded in panels of so many.
inline constexpr uint32_t kTensorMapColumns = 64;
// Rows of q and o that one warpgroup works on.
inline constexpr uint32_t kTensorMapQueries = 64;

// N of the two kinds of tensors, for the host and for the kernels.
constexpr int64_t query_map_rows(const Params& p) { return p.seqlen_q > 0 ? p.seqlen_q : 1; }
constexpr int64_t key_map_rows(const Params& p) {
  const int64_t rows = p.block_table ? p.page_size : p.seqlen_k + p.seqlen_new;
  return rows > 0 ? rows : 1;
}

// Coordinates of row 0 of a sequence of `rows` rows, which starts `offset` elements after the tensor's first.
struct MapPlace {
  int32_t row, fine, coarse;
};
constexpr MapPlace map_place(const Tensor& t, int64_t map_rows, int64_t rows, int64_t offset) {
  const uint64_t bytes = uint64_t(offset - (map_rows - rows) * t.stride[1]) * 2;
  return {int32_t(map_rows - rows), int32_t(bytes >> 4 & 0x3FFFFFFF), int32_t(bytes >> 34)};
}

// Rows of a tile of keys that are loaded at once: they lie in one page. A multiple of 8, the period of the swizzle
// (kNeedsPagesOf8).
constexpr int32_t key_map_box(const Params& p, int32_t tile_k) {
  if (!p.block_table) return tile_k;
  int64_t a = tile_k, b = p.page_size;
  while (b != 0) {
    const int64_t rest = a % b;
    a = b, b = rest;
  }
  return int32_t(a);
}

}  // namespace flashwave::abi
