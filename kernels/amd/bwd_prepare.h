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
template <class T>
FW_DEVICE Eight<T> load_eight(const abi::Tensor& t, int64_t offset) {
  return *reinterpret_cast<const Eight<T>*>(elements<const T>(t) + offset);
}

// Of the rows of a block. One that is not there sees no key.
template <class T>
FW_DEVICE void prepare_block(const GpuArguments& args, const Block& block, const Sequence& seq) {
  const Params& p = args.params;
  for (int in_block = thread_index() / kRowLanes; in_block < block.tile_q; in_block += kRowsAtOnce) {
    const int64_t row = block.first_row() + in_block;
    const bool exists = row < seq.queries;
    float sum = 0.f;
    if (exists) {
      const int64_t o = query_offset(p.o, seq, row, block.head), d_o = query_offset(p.d_o, seq, row, block.head);
      for (int column = thread_index() % kRowLanes * 8; column < p.dim_v; column += kRowLanes * 8) {
        const Eight<T> b = load_eight<T>(p.d_o, d_o + column);
        if (p.o.dtype == abi::kF32) {
          const Eight<float> a = load_eight<float>(p.o, o + column);
          FW_UNROLL for (int i = 0; i < 8; ++i) sum = __builtin_fmaf(a.x[i], load(&b.x[i]), sum);
        } else {
          const Eight<T> a = load_eight<T>(p.o, o + column);
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
    block.lse()[row_place(in_block)] = lse_number(args, lse);
    block.delta()[row_place(in_block)] = delta_number(exists ? sum : 0.f);
  }
}

}  // namespace flashwave
