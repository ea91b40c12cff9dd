// Tensor maps: what a TMA (tensor memory accelerator, compute capability 9.0) knows about q, k, v and o. The host
// describes them here in plain C++; src/device/cuda encodes the descriptions (cuTensorMapEncodeTiled: 16-bit elements,
// no interleave, 128-byte swizzle, 256-byte L2 promotion, zeros out of bounds) and passes them with the arguments.
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
#pragma once

#include <cstdint>

#include "kernels/abi/params.h"

namespace flashwave::abi {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
struct TensorMaps {
  TensorMap q, k, v, o;
};
static_assert(sizeof(TensorMaps) == 4 * 128 && alignof(TensorMaps) == 64);

inline constexpr uint32_t kTensorMapRank = 5;
struct TensorMapDescription {
  uint64_t base;  // address
  uint64_t dims[kTensorMapRank];
  uint64_t strides[kTensorMapRank - 1];  // bytes, of dims[1] on
  uint32_t box[kTensorMapRank];
};
struct TensorMapDescriptions {
  TensorMapDescription q, k, v, o;
};

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

inline TensorMapDescription describe_tensor_map(const Tensor& t, const void* data, int64_t rows, int64_t dim,
                                                int64_t heads, uint32_t box_rows) {
  const auto bytes = [&](int i) { return uint64_t(t.stride[i]) * 2; };
  return {.base = uint64_t(reinterpret_cast<uintptr_t>(data)),
          .dims = {uint64_t(dim), uint64_t(rows), uint64_t(heads), uint64_t{1} << 30, uint64_t{1} << 30},
          .strides = {bytes(1), bytes(2), 16, uint64_t{1} << 34},
          .box = {kTensorMapColumns, box_rows, 1, 1, 1}};
}

// tile_k: of the kernel's row in the catalog, at most 256.
inline TensorMapDescriptions describe_tensor_maps(const Params& p, int32_t tile_k) {
  const int64_t queries = query_map_rows(p), keys = key_map_rows(p);
  const uint32_t box = uint32_t(key_map_box(p, tile_k));
  // Without keys there may be no k and v; their maps are not used then.
  const auto data = [&](const Tensor& t) { return t.data ? t.data : p.o.data; };
  return {.q = describe_tensor_map(p.q, data(p.q), queries, p.dim_qk, p.heads_q, kTensorMapQueries),
          .k = describe_tensor_map(p.k, data(p.k), keys, p.dim_qk, p.heads_k, box),
          .v = describe_tensor_map(p.v, data(p.v), keys, p.dim_v, p.heads_k, box),
          .o = describe_tensor_map(p.o, data(p.o), queries, p.dim_v, p.heads_q, kTensorMapQueries)};
}

// For a backward: q, k, v, and d_o in the place of o, in boxes of 64 rows.
inline TensorMapDescriptions describe_gradient_maps(const Params& p) {
  const int64_t queries = query_map_rows(p), keys = key_map_rows(p);
  const auto data = [&](const Tensor& t) { return t.data ? t.data : p.lse.data; };
  return {.q = describe_tensor_map(p.q, data(p.q), queries, p.dim_qk, p.heads_q, kTensorMapQueries),
          .k = describe_tensor_map(p.k, data(p.k), keys, p.dim_qk, p.heads_k, kTensorMapQueries),
          .v = describe_tensor_map(p.v, data(p.v), keys, p.dim_v, p.heads_k, kTensorMapQueries),
          .o = describe_tensor_map(p.d_o, data(p.d_o), queries, p.dim_v, p.heads_q, kTensorMapQueries)};
}

}  // namespace flashwave::abi
