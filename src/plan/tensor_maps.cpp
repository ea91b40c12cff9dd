// What kernels that load by TMA are told about q, k, v, o or d_o, and the bias (kernels/abi/tensor_maps.h).
#include "kernels/abi/tensor_maps.h"

#include <algorithm>
#include <utility>

#include "plan/plan.h"

namespace flashwave {
namespace {

abi::TensorMapDescription describe(const char* name, const abi::Tensor& t, const void* data, int64_t rows, int64_t dim,
                                   int64_t heads, int64_t box_rows, int64_t box_heads = 1) {
  const auto bytes = [&](int i) { return static_cast<uint64_t>(t.stride[i]) * 2; };
  return {.tensor = name,
          .base = reinterpret_cast<uintptr_t>(data),
          .dims = {static_cast<uint64_t>(dim), static_cast<uint64_t>(rows), static_cast<uint64_t>(heads),
                   uint64_t{1} << 30, uint64_t{1} << 30},
          .strides = {bytes(1), bytes(2), 16, uint64_t{1} << 34},
          .box = {abi::kTensorMapColumns, static_cast<uint32_t>(box_rows), static_cast<uint32_t>(box_heads), 1, 1},
          .l2_bytes = 256};
}

}  // namespace

TensorMapDescriptions describe_tensor_maps(const KernelRow& row, const abi::Params& p) {
  const int64_t queries = abi::query_map_rows(p), keys = abi::key_map_rows(p);
  const bool backward = (row.needs & kNeedsGradientMaps) != 0;
  const int64_t box = backward ? abi::kTensorMapQueries : abi::key_map_box(p, row.tile_k);
  // Without keys there may be no k and v; their maps are not used then.
  const auto data = [&](const abi::Tensor& t) { return t.data ? t.data : p.o.data; };
  const int64_t packed = row.work == Work::kPackedSplits ? packed_heads(p.heads_q, p.heads_k) : 1;
  const int64_t box_q = abi::kTensorMapQueries / packed;
  const abi::Tensor& o = backward ? p.d_o : p.o;
  TensorMapDescriptions found = {
      {describe("q", p.q, data(p.q), queries, p.dim_qk, p.heads_q, box_q, packed),
       describe("k", p.k, data(p.k), keys, p.dim_qk, p.heads_k, box),
       describe("v", p.v, data(p.v), keys, p.dim_v, p.heads_k, box),
       describe(backward ? "d_o" : "o", o, data(o), queries, p.dim_v, p.heads_q, box_q, packed)},
      4};
  // Keys and values of few queries are read once. By 256 bytes at a time, the L2 cache is asked for a quarter more than
  // that, and memory gives 3.9 instead of 4.2 TB/s (kernels/hopper/NOTES.md).
  if (row.work == Work::kPackedSplits) found.maps[1].l2_bytes = found.maps[2].l2_bytes = 128;
  if (row.needs & kNeedsBiasMap) {
    // Strides of (batch, head, query, key), where tensors of rows have (batch, row, head, column).
    abi::Tensor bias = p.bias;
    std::swap(bias.stride[1], bias.stride[2]);
    found.maps[found.count++] = describe("bias", bias, p.bias.data, queries, std::max<int64_t>(p.seqlen_k, 1),
                                         p.heads_q, abi::kTensorMapQueries);
  }
  return found;
}

}  // namespace flashwave
