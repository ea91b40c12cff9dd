// The pre-pass of attention on a growing cache: rotates the queries and the new keys by their positions and writes the
// new keys and values behind those in use. A task is one row, all heads: of each sequence first the seqlen_new rows of
// k_new and v_new, then, with rotary, its seqlen_q queries.
#include "kernels/generic/rotary.h"

namespace flashwave {

template <class T>
FW_DEVICE void append(const GpuArguments& args) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const bool rotates = p.rotary_cos.data != nullptr;
  const int64_t rows = p.seqlen_new + (rotates ? p.seqlen_q : 0);
  const int32_t b = int32_t(task / rows);
  const int64_t row = task % rows, used = used_rows(p, b, stored_rows(p, b));
  Sequence seq = sequence_of(p, b);
  if (row >= p.seqlen_new) {
    if (row - p.seqlen_new < seq.queries) rotate_query<T>(p, seq, row - p.seqlen_new);
    return;
  }
  // Rows count from the start of the sequence's storage, its left pad included.
  seq.k_row -= left_pad(p, b);
  const HeadRows<const T> k{elements<const T>(p.k_new) + b * p.k_new.stride[0] + row * p.k_new.stride[1],
                            p.k_new.stride[2]};
  const HeadRows<const T> v{elements<const T>(p.v_new) + b * p.v_new.stride[0] + row * p.v_new.stride[1],
                            p.v_new.stride[2]};
  const HeadRows<T> k_out{elements<T>(p.k) + bounded_key_offset(p, p.k, seq, used + row, 0), p.k.stride[2]};
  const HeadRows<T> v_out{elements<T>(p.v) + bounded_key_offset(p, p.v, seq, used + row, 0), p.v.stride[2]};
  if (rotates) {
    rotate_heads<T>(p, used + row, k, k_out, p.heads_k);
  } else {
    copy_heads<T>(k, k_out, p.heads_k, 0, p.dim_qk);
  }
  copy_heads<T>(v, v_out, p.heads_k, 0, p.dim_v);
}

FW_KERNEL(kRotaryThreads) FW_NAME(append_f16)(FW_ARGUMENTS(args)) { append<_Float16>(args); }
FW_KERNEL(kRotaryThreads) FW_NAME(append_bf16)(FW_ARGUMENTS(args)) { append<BFloat16>(args); }
FW_KERNEL(kRotaryThreads) FW_NAME(append_f32)(FW_ARGUMENTS(args)) { append<float>(args); }

}  // namespace flashwave
