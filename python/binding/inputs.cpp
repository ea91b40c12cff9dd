#include "inputs.h"

#include <limits>

namespace flashwave_torch {
namespace {

template <class T>
const T* pointer(const MaybeTensor& tensor) {
  return tensor ? static_cast<const T*>(View(*tensor).data) : nullptr;
}

bool fits(const View& view, const View& q, std::initializer_list<int64_t> sizes) {
  if (view.rank != static_cast<int64_t>(sizes.size()) || view.dtype != q.dtype || !view.beside(q)) return false;
  const int64_t* size = view.sizes;
  for (const int64_t wanted : sizes) {
    if (*size++ != wanted) return false;
  }
  return view.rows_are_dense();
}

bool put_cache(const Inputs& in, const View& q, const View& k, fw_attention* a) {
  if (!in.lengths_given && k.rank == 4) a->seqlen_k = k.sizes[1];
  if (in.block_table) {
    const View table(*in.block_table);
    if (!in.lengths_given && table.rank == 2) a->seqlen_k *= table.sizes[1];
    if (k.rank != 4 || k.sizes[0] < 1 || k.sizes[1] < 1 || table.rank != 2 || table.sizes[0] != a->batch ||
        table.dtype != aoti_torch_dtype_int32() || !table.beside(q) || !table.rows_are_dense() ||
        a->seqlen_k > table.sizes[1] * k.sizes[1]) {
      return false;
    }
    a->block_table = static_cast<const int32_t*>(table.data), a->block_table_stride = table.strides[0];
    a->page_size = k.sizes[1], a->batch_k = k.sizes[0];
  } else if (in.cu_seqlens_k) {
    if (k.rank != 3) return false;
    a->total_k = k.sizes[0];
  } else {
    if (k.rank != 4 || a->seqlen_k != k.sizes[1]) return false;
    if (in.cache_batch_idx) a->batch_k = k.sizes[0];
    if (!in.cache_batch_idx && k.sizes[0] != a->batch) return false;
  }
  if (!is_int32(in.cu_seqlens_k, q, a->batch + 1) || !is_int32(in.seqused_k, q, a->batch) ||
      !is_int32(in.leftpad_k, q, a->batch) || !is_int32(in.cache_batch_idx, q, a->batch)) {
    return false;
  }
  a->cu_seqlens_k = pointer<int32_t>(in.cu_seqlens_k), a->seqused_k = pointer<int32_t>(in.seqused_k);
  a->leftpad_k = pointer<int32_t>(in.leftpad_k), a->cache_batch_idx = pointer<int32_t>(in.cache_batch_idx);
  return true;
}

bool put_rotary(const Inputs& in, const View& q, fw_attention* a) {
  if (!in.rotary_cos && !in.rotary_sin) return true;
  if (!in.rotary_cos || !in.rotary_sin) return false;
  const View cos(*in.rotary_cos), sin(*in.rotary_sin);
  if (cos.rank != 2 || sin.rank != 2 || cos.sizes[0] != sin.sizes[0] || cos.sizes[1] != sin.sizes[1]) return false;
  a->rotary_seqlen = cos.sizes[0], a->rotary_dim = 2 * cos.sizes[1];
  return put_table(cos, q, &a->rotary_cos) && put_table(sin, q, &a->rotary_sin) && a->rotary_dim <= a->dim_qk;
}

bool put_append(const Inputs& in, const View& q, fw_attention* a) {
  if (!in.k_new && !in.v_new) return !in.rotary_cos && !in.rotary_sin;
  if (!in.k_new || !in.v_new) return false;
  const View k_new(*in.k_new), v_new(*in.v_new);
  if (k_new.rank != 4) return false;
  a->seqlen_new = k_new.sizes[1];
  if (!fits(k_new, q, {a->batch, a->seqlen_new, a->heads_k, a->dim_qk}) ||
      !fits(v_new, q, {a->batch, a->seqlen_new, a->heads_k, a->dim_v})) {
    return false;
  }
  a->k_new = rows(k_new), a->v_new = rows(v_new);
  return put_rotary(in, q, a);
}

bool put_score_terms(const Inputs& in, const View& q, fw_attention* a) {
  if (in.alibi_slopes) {
    const View slopes(*in.alibi_slopes);
    const bool of_batch = slopes.rank == 2 && slopes.sizes[0] == a->batch;
    if ((slopes.rank != 1 && !of_batch) || slopes.size(1) != a->heads_q || slopes.dtype != aoti_torch_dtype_float32() ||
        !slopes.is_dense() || !slopes.beside(q)) {
      return false;
    }
    a->alibi_slopes = static_cast<const float*>(slopes.data);
    a->alibi_batch_stride = of_batch && a->batch > 1 ? slopes.strides[0] : 0;
  }
  if (in.sinks) {
    const View sinks(*in.sinks);
    if (sinks.rank != 1 || sinks.sizes[0] != a->heads_q || sinks.dtype != aoti_torch_dtype_float32() ||
        !sinks.is_dense() || !sinks.beside(q)) {
      return false;
    }
    a->sinks = static_cast<const float*>(sinks.data);
  }
  if (in.bias) {
    const View bias(*in.bias);
    const Sizes full{a->batch, a->heads_q, a->seqlen_q, a->seqlen_k};
    if (bias.rank != 4 || (bias.dtype != q.dtype && bias.dtype != aoti_torch_dtype_float32()) || !bias.beside(q)) {
      return false;
    }
    for (size_t i = 0; i < 4; ++i) {
      if (bias.sizes[i] != 1 && bias.sizes[i] != full[i]) return false;
    }
    a->bias = pairs(bias);
  }
  return true;
}

bool put_dropout(const Inputs& in, const View& q, fw_attention* a) {
  a->dropout_p = static_cast<float>(in.dropout_p);
  if (in.dropout_p == 0) return true;
  if (!in.rng_state) return false;
  const View state(*in.rng_state);
  if (state.rank != 1 || state.sizes[0] != 2 || state.dtype != aoti_torch_dtype_int64() || !state.is_dense()) {
    return false;
  }
  const auto* numbers = static_cast<const uint64_t*>(state.data);
  if (state.on_cpu()) {
    a->dropout_seed = numbers[0], a->dropout_offset = numbers[1];
    return true;
  }
  a->dropout_state = numbers;
  return state.beside(q);
}

bool fill(const Inputs& in, const View& q, const View& k, const View& v, fw_attention* a) {
  if (library_dtype(q.dtype) == FW_DTYPE_NONE || q.rank != (in.cu_seqlens_q ? 3 : 4) || !q.rows_are_dense()) {
    return false;
  }
  if (k.rank < 3 || k.rank > 4 || k.dtype != q.dtype || !k.beside(q) || !k.rows_are_dense()) return false;
  a->flags = (in.causal ? uint32_t{FW_CAUSAL} : 0u) | (in.deterministic ? uint32_t{FW_DETERMINISTIC} : 0u) |
             (in.rotary_interleaved ? uint32_t{FW_ROTARY_INTERLEAVED} : 0u) | uint32_t{FW_FILL_UNUSED};
  a->heads_q = q.size(2), a->heads_k = k.size(2), a->dim_qk = q.size(1);
  if (v.rank != k.rank || v.dtype != q.dtype || !v.beside(q) || !v.rows_are_dense() || k.size(1) != a->dim_qk) {
    return false;
  }
  a->dim_v = v.size(1);
  if (a->heads_k < 1 || a->heads_q % a->heads_k != 0) return false;  // Python has the words for it
  for (int64_t i = 0; i + 1 < k.rank; ++i) {
    if (v.sizes[i] != k.sizes[i]) return false;
  }
  a->seqlen_q = in.max_seqlen_q, a->seqlen_k = in.max_seqlen_k;
  if (in.cu_seqlens_q) {
    const View offsets(*in.cu_seqlens_q);
    a->batch = offsets.rank == 1 ? offsets.sizes[0] - 1 : -1;
    if (a->batch < 0 || !is_int32(in.cu_seqlens_q, q, a->batch + 1)) return false;
    a->cu_seqlens_q = static_cast<const int32_t*>(offsets.data), a->total_q = q.sizes[0];
  } else {
    a->batch = q.sizes[0];
    if (!in.lengths_given) a->seqlen_q = q.sizes[1];
    if (a->seqlen_q != q.sizes[1]) return false;
  }
  a->q = rows(q), a->k = rows(k), a->v = rows(v);
  a->window_left = in.window_left, a->window_right = in.window_right;
  a->softcap = static_cast<float>(in.softcap);
  if (in.softmax_scale) a->softmax_scale = static_cast<float>(*in.softmax_scale);
  if (in.num_splits < 0 || in.num_splits > std::numeric_limits<int32_t>::max()) return false;
  a->num_splits = static_cast<int32_t>(in.num_splits);
  return put_cache(in, q, k, a) && put_append(in, q, a) && put_score_terms(in, q, a) && put_dropout(in, q, a);
}

}  // namespace

StableIValue* give(StableIValue* stack, Inputs in, uint64_t count) {
  if (!in.lengths_given) {
    const View q(in.q), k(in.k);
    in.max_seqlen_q = q.rank > 1 ? q.sizes[1] : 0, in.max_seqlen_k = k.rank > 1 ? k.sizes[1] : 0;
    if (in.block_table) {
      const View table(*in.block_table);
      in.max_seqlen_k *= table.rank > 0 ? table.size(1) : 0;
    }
  }
  stack = give(stack, std::move(in.q), std::move(in.k), std::move(in.v), std::move(in.cu_seqlens_q),
               std::move(in.cu_seqlens_k), std::move(in.seqused_k), std::move(in.leftpad_k),
               std::move(in.cache_batch_idx), std::move(in.block_table), std::move(in.alibi_slopes), std::move(in.bias),
               std::move(in.sinks), std::move(in.rng_state), in.max_seqlen_q, in.max_seqlen_k, in.softmax_scale,
               in.causal, in.window_left, in.window_right, in.softcap, in.dropout_p, in.num_splits, in.deterministic);
  if (count == kForwardArguments) return stack;
  return give(stack, std::move(in.k_new), std::move(in.v_new), std::move(in.rotary_cos), std::move(in.rotary_sin),
              in.rotary_interleaved);
}

bool is_int32(const MaybeTensor& tensor, const View& q, int64_t count) {
  if (!tensor) return true;
  const View view(*tensor);
  return view.rank == 1 && view.sizes[0] == count && view.dtype == aoti_torch_dtype_int32() && view.is_dense() &&
         view.beside(q);
}

bool put_table(const View& table, const View& q, fw_tensor* to) {
  const bool known = table.dtype == q.dtype || table.dtype == aoti_torch_dtype_float32();
  if (!known || !table.beside(q) || !table.rows_are_dense()) return false;
  to->data = table.data, to->dtype = library_dtype(table.dtype);
  to->stride[0] = table.strides[0], to->stride[1] = 1;
  return true;
}

fw_tensor rows(const View& view) {
  fw_tensor t{.data = view.data, .stride = {}, .dtype = library_dtype(view.dtype), .reserved = 0};
  for (int64_t i = 0; i < view.rank; ++i) t.stride[4 - view.rank + i] = view.strides[i];
  return t;
}

fw_tensor new_rows(const Tensor& made, const View& like) {
  fw_tensor t{.data = data_of(made), .stride = {}, .dtype = library_dtype(like.dtype), .reserved = 0};
  for (int64_t i = like.rank - 1, step = 1; i >= 0; --i) {
    t.stride[4 - like.rank + i] = step;
    step *= like.sizes[i] > 1 ? like.sizes[i] : 1;
  }
  return t;
}

fw_tensor pairs(const View& view) {
  fw_tensor t{.data = view.data, .stride = {}, .dtype = library_dtype(view.dtype), .reserved = 0};
  for (int64_t i = 0; i < 4; ++i) t.stride[i] = view.sizes[i] == 1 ? 0 : view.strides[i];
  return t;
}

Problem::Problem(const Inputs& inputs) : q(inputs.q), k(inputs.k), v(inputs.v) {
  library.attention_init(&a, sizeof a);
  ok = fill(inputs, q, k, v, &a);
}

void Problem::put_out(const View& out) { a.o = rows(out); }

void Problem::put_lse(const View& lse) {
  a.lse.data = lse.data, a.lse.dtype = FW_F32;
  a.lse.stride[0] = lse.rank == 3 ? lse.strides[0] : 0;
  a.lse.stride[1] = lse.strides[lse.rank - 1], a.lse.stride[2] = lse.strides[lse.rank - 2];
}

Tensor Problem::new_out() const {
  Sizes sizes{};
  for (int64_t i = 0; i < q.rank; ++i) sizes[static_cast<size_t>(i)] = i + 1 < q.rank ? q.sizes[i] : a.dim_v;
  return empty(sizes.data(), q.rank, q.dtype, q);
}

Tensor Problem::new_lse() const {
  const Sizes shape = q.rank == 4 ? Sizes{a.batch, a.heads_q, a.seqlen_q} : Sizes{a.heads_q, q.sizes[0]};
  return empty(shape.data(), q.rank - 1, aoti_torch_dtype_float32(), q);
}

Tensor Problem::new_probs() const {
  const Sizes shape{a.batch, a.heads_q, a.seqlen_q, a.seqlen_k};
  return empty(shape.data(), 4, aoti_torch_dtype_float32(), q);
}

}  // namespace flashwave_torch
