// What a backward needs of each query before it begins: lse and delta, by a workgroup of 256 threads.
#pragma once

#include "kernels/amd/bwd_block.h"
#include "kernels/common/elements.h"
#include "kernels/common/sequence.h"

namespace flashwave {

inline constexpr int kPrepareThreads = 256;
inline constexpr int kRowLanes = 16, kRowsAtOnce = kPrepareThreads / kRowLanes;  // of a row

template <class T>
struct alignas(16) Eight {
  T x[8];
};
// The rows of a block lie within 2^31 bytes (kNeedsNearRows): one address for all, and offsets of 32 bits.
template <class T>
struct BlockRows {
  const char* first;
  uint32_t stride;
  FW_METHOD BlockRows(const abi::Tensor& t, const Sequence& seq, const Block& block)
      : first(static_cast<const char*>(t.data) +
              uniform(query_offset(t, seq, block.first_row(), block.head)) * int64_t{sizeof(T)}),
        stride(uint32_t(t.stride[1]) * uint32_t{sizeof(T)}) {}
  FW_METHOD Eight<T> load_eight(int row, int column) const {
    return *reinterpret_cast<const Eight<T>*>(first +
                                              (uint32_t(row) * stride + uint32_t(column) * uint32_t{sizeof(T)}));
  }
};

// Of the rows of a block. One that is not there sees no key.
template <class T>
FW_DEVICE void prepare_block(const Params& p, const Block& block, const Sequence& seq, bool by_scale) {
  const BlockRows<T> d_o(p.d_o, seq, block), o(p.o, seq, block);
  const BlockRows<float> o_in_fp32(p.o, seq, block);
  float *const lse_to = block.lse(), *const delta_to = block.delta();
  for (int in_block = thread_index() / kRowLanes; in_block < block.tile_q; in_block += kRowsAtOnce) {
    const int64_t row = block.first_row() + in_block;
    const bool exists = row < seq.queries;
    float sum = 0.f;
    if (exists) {
      for (int column = thread_index() % kRowLanes * 8; column < p.dim_v; column += kRowLanes * 8) {
        const Eight<T> b = d_o.load_eight(in_block, column);
        if (p.o.dtype == abi::kF32) {
          const Eight<float> a = o_in_fp32.load_eight(in_block, column);
          FW_UNROLL for (int i = 0; i < 8; ++i) sum = __builtin_fmaf(a.x[i], load(&b.x[i]), sum);
        } else {
          const Eight<T> a = o.load_eight(in_block, column);
          FW_UNROLL for (int i = 0; i < 8; ++i) sum = __builtin_fmaf(load(&a.x[i]), load(&b.x[i]), sum);
        }
      }
    }
    sum += dpp<0xB1>(sum);   // quad_perm [1,0,3,2]
    sum += dpp<0x4E>(sum);   // quad_perm [2,3,0,1]
    sum += dpp<0x141>(sum);  // row_half_mirror
    sum += dpp<0x140>(sum);  // row_mirror
    if (thread_index() % kRowLanes != 0) continue;
    float lse = -kInf;
    if (exists) {
      lse = elements<const float>(p.lse)[query_offset(p.lse, seq, row, block.head)];
      if (p.d_lse.data) sum -= elements<const float>(p.d_lse)[query_offset(p.d_lse, seq, row, block.head)];
    }
    lse_to[row_place(in_block)] = lse_number(p, lse, by_scale);
    delta_to[row_place(in_block)] = delta_number(p, exists ? sum : 0.f);
  }
}

}  // namespace flashwave
