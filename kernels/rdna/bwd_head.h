// A whole head in one workgroup, for short sequences: lse and delta, then one block of keys after the other (bwd.h).
// Nobody else adds to its dQ: the sums of a block are where those of the next one start, in memory if there are
// several, and the last one writes dQ. One launch, no atomics, the same bits in every run.
#pragma once

#include "kernels/amd/bwd_prepare.h"
#include "kernels/rdna/bwd.h"

namespace flashwave {

// lse and delta of all queries of a head. A row takes kDim / 8 lanes, 8 columns each; several rows of a lane are loaded
// at once.
template <class T, class C>
struct HeadNumbers {
  static constexpr int kLanes = C::kDim / 8, kRows = C::kThreads / kLanes, kAtOnce = 4;
  static_assert(kLanes == 8 || kLanes == 16);
  using Storage = typename T::Storage;

  const Params& p;
  const Sequence& seq;
  const int head;
  char* const blocks;  // the head's first one
  const int64_t step;  // bytes to the next one

  template <class E>
  FW_METHOD Eight<E> load_eight(const abi::Tensor& t, int row) const {
    const int column = thread_index() % kLanes * 8;
    Eight<E> x = {};
    if (row < seq.queries && column < p.dim_v) {
      x = *reinterpret_cast<const Eight<E>*>(elements<const E>(t) + query_offset(t, seq, row, head) + column);
    }
    return x;
  }
  template <class O>
  FW_METHOD void rows_from(int first) const {
    Eight<O> o[kAtOnce];
    Eight<Storage> d_o[kAtOnce];
    FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
      o[j] = load_eight<O>(p.o, first + j * kRows);
      d_o[j] = load_eight<Storage>(p.d_o, first + j * kRows);
    }
    FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
      float sum = 0.f;
      FW_UNROLL for (int i = 0; i < 8; ++i) sum = __builtin_fmaf(load(&o[j].x[i]), load(&d_o[j].x[i]), sum);
      sum += dpp<0xB1>(sum);                               // quad_perm [1,0,3,2]
      sum += dpp<0x4E>(sum);                               // quad_perm [2,3,0,1]
      sum += dpp<0x141>(sum);                              // row_half_mirror
      if constexpr (kLanes == 16) sum += dpp<0x140>(sum);  // row_mirror
      write(first + j * kRows, sum);
    }
  }
  // Rows that are not there see no key; a sequence without queries has a block that its keys may read.
  FW_METHOD int end() const { return int(seq.queries > 0 ? (seq.queries + 15) & ~15 : 16); }
  FW_METHOD void write(int row, float delta) const {
    if (thread_index() % kLanes != 0 || row >= end()) return;
    float lse = -kInf;
    if (row < seq.queries) {
      lse = elements<const float>(p.lse)[query_offset(p.lse, seq, row, head)];
      if (p.d_lse.data) delta -= elements<const float>(p.d_lse)[query_offset(p.d_lse, seq, row, head)];
    } else {
      delta = 0.f;
    }
    float* const to = reinterpret_cast<float*>(blocks + row / C::kStreamed * step);
    const int place = row_place(row % C::kStreamed);
    to[place] = lse_number(p, lse, true);
    to[C::kStreamed + place] = delta_number(p, delta);
  }
  FW_METHOD void write_all() const {
    FW_NO_UNROLL for (int first = thread_index() / kLanes; first < end(); first += kRows * kAtOnce) {
      if (p.o.dtype == abi::kF32)
        rows_from<float>(first);
      else
        rows_from<Storage>(first);
    }
  }
};

template <class T, class C>
FW_DEVICE void write_numbers(const GpuArguments& args) {
  const Params& p = args.params;
  const auto at = Backward<T, C>::place_of(p);
  const Sequence seq = sequence_of(p, at.batch);
  const int64_t bytes = abi::backward_block_bytes(C::kStreamed, args.schedule.dq_columns);
  const int64_t number = abi::backward_first_block(p, at.batch, C::kStreamed) * p.heads_q + at.head;
  char* const blocks = args.shared + abi::kBackwardHeaderBytes + number * bytes;
  HeadNumbers<T, C>{p, seq, at.head, blocks, p.heads_q * bytes}.write_all();
}

// Of a block of keys; `done`: queries whose dQ a block before has added to, or that see no key. Whether there are such
// keys. Arguments are read anew: before the loop over blocks there would be too many to keep.
template <class T, class C>
FW_DEVICE bool add_keys(char* lds, int x0, int& done) {
  const GpuArguments& args = *(const GpuArguments*)&arguments_again();
  Backward<T, C> work(args, lds);
  work.at = work.place_of(args.params);
  work.at.x0 = x0;
  if (!work.choose_rows()) return false;
  work.first_from = done;
  if (work.count > 0) {
    const int first = work.tiles.first * C::kStreamed;
    if (first > done) work.clear_queries(args.params, work.seq, work.at.head, done, first);
    done = work.tiles.end * C::kStreamed;
  }
  work.attend(args);
  return true;
}

template <class T, class C>
FW_DEVICE void backward_head(const GpuArguments& args, char* lds) {
  if (task_index() >= args.schedule.tasks) return;
  write_numbers<T, C>(args);
  workgroup_barrier_with_memory();
  int done = 0;
  FW_NO_UNROLL for (int x0 = 0; add_keys<T, C>(lds, x0, done); x0 += C::kKept) {}
  const GpuArguments& again = *(const GpuArguments*)&arguments_again();
  const auto at = Backward<T, C>::place_of(again.params);
  const Sequence seq = sequence_of(again.params, at.batch);
  if (done < seq.queries) Backward<T, C>::clear_queries(again.params, seq, at.head, done, int(seq.queries));
  Backward<T, C>(again, lds).clear_pad(again.schedule);
}

}  // namespace flashwave
