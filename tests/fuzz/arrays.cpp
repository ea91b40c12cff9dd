#include "arrays.h"

#include <bit>
#include <cstring>

#include "kernels/common/dtype.h"

namespace fuzz {
namespace {

__extension__ typedef __int128 Wide;

Array tensor(const char* name, const fw_tensor& t, int64_t e0, int64_t e1, int64_t e2, int64_t e3, bool written) {
  Array array{name, static_cast<char*>(t.data), {e0, e1, e2, e3}, {}, t.dtype, written};
  std::memcpy(array.stride, t.stride, sizeof array.stride);
  return array;
}

Array plain(const char* name, const void* data, int32_t dtype, int64_t rows, int64_t stride, int64_t columns,
            bool written = false) {
  auto* bytes = const_cast<char*>(static_cast<const char*>(data));
  return {name, bytes, {1, 1, rows, columns}, {0, 0, stride, 1}, dtype, written};
}

}  // namespace

bool Array::empty() const {
  return data == nullptr || extent[0] <= 0 || extent[1] <= 0 || extent[2] <= 0 || extent[3] <= 0;
}

bool Array::inside(const char* begin, const char* end) const {
  if (empty()) return true;
  Wide low = 0, high = 0;
  for (int i = 0; i < 4; ++i) {
    const Wide reach = (Wide{extent[i]} - 1) * stride[i] * element();
    (reach < 0 ? low : high) += reach;
  }
  const Wide first = reinterpret_cast<uintptr_t>(data) + low,
             last = reinterpret_cast<uintptr_t>(data) + high + element();
  return first >= reinterpret_cast<uintptr_t>(begin) && last <= reinterpret_cast<uintptr_t>(end);
}

std::vector<Array> arrays_of(const fw_attention& a, const fw_gradients* g) {
  const bool backward = g != nullptr, packed_q = a.cu_seqlens_q != nullptr, packed_k = a.cu_seqlens_k != nullptr;
  const bool paged = a.block_table != nullptr, append = a.seqlen_new > 0;
  const int64_t batch_q = packed_q ? 1 : a.batch, rows_q = packed_q ? a.total_q : a.seqlen_q;
  int64_t batch_k = a.batch_k == 0 ? a.batch : a.batch_k, rows_k = a.seqlen_k;
  if (packed_k) batch_k = 1, rows_k = a.total_k;
  if (paged) batch_k = a.batch_k, rows_k = a.page_size;

  const int64_t offsets = a.batch < INT64_MAX ? a.batch + 1 : a.batch;
  const int64_t slope_rows = a.alibi_batch_stride == 0 ? 1 : a.batch;
  std::vector<Array> all = {
      tensor("q", a.q, batch_q, rows_q, a.heads_q, a.dim_qk, false),
      tensor("k", a.k, batch_k, rows_k, a.heads_k, a.dim_qk, append),
      tensor("v", a.v, batch_k, rows_k, a.heads_k, a.dim_v, append),
      tensor("o", a.o, batch_q, rows_q, a.heads_q, a.dim_v, !backward),
      tensor("lse", a.lse, batch_q, rows_q, a.heads_q, 1, !backward),
      tensor("bias", a.bias, a.batch, a.heads_q, a.seqlen_q, a.seqlen_k, false),
      plain("cu_seqlens_q", a.cu_seqlens_q, FW_DTYPE_NONE, 1, 0, offsets),
      plain("cu_seqlens_k", a.cu_seqlens_k, FW_DTYPE_NONE, 1, 0, offsets),
      plain("seqused_k", a.seqused_k, FW_DTYPE_NONE, 1, 0, a.batch),
      plain("leftpad_k", a.leftpad_k, FW_DTYPE_NONE, 1, 0, a.batch),
      plain("cache_batch_idx", a.cache_batch_idx, FW_DTYPE_NONE, 1, 0, a.batch),
      plain("alibi_slopes", a.alibi_slopes, FW_F32, slope_rows, a.alibi_batch_stride, a.heads_q),
      plain("sinks", a.sinks, FW_F32, 1, 0, a.heads_q),
      plain("dropout_state", a.dropout_p > 0 ? a.dropout_state : nullptr, FW_DTYPE_NONE, 1, 0, 4),  // as 32-bit words
  };
  const int64_t blocks = a.page_size > 0 && a.seqlen_k > 0 ? (a.seqlen_k - 1) / a.page_size + 1 : 0;
  all.push_back(plain("block_table", a.block_table, FW_DTYPE_NONE, a.batch, a.block_table_stride, blocks));
  if (!backward) {
    all.push_back(tensor("probs", a.probs, a.batch, a.heads_q, a.seqlen_q, a.seqlen_k, true));
    all.push_back(tensor("k_new", a.k_new, a.batch, a.seqlen_new, a.heads_k, a.dim_qk, false));
    all.push_back(tensor("v_new", a.v_new, a.batch, a.seqlen_new, a.heads_k, a.dim_v, false));
    all.push_back(tensor("rotary_cos", a.rotary_cos, a.rotary_seqlen, a.rotary_dim / 2, 1, 1, false));
    all.push_back(tensor("rotary_sin", a.rotary_sin, a.rotary_seqlen, a.rotary_dim / 2, 1, 1, false));
    return all;
  }
  all.push_back(tensor("d_o", g->d_o, batch_q, rows_q, a.heads_q, a.dim_v, false));
  all.push_back(tensor("d_lse", g->d_lse, batch_q, rows_q, a.heads_q, 1, false));
  all.push_back(tensor("dq", g->dq, batch_q, rows_q, a.heads_q, a.dim_qk, true));
  all.push_back(tensor("dk", g->dk, batch_k, rows_k, a.heads_k, a.dim_qk, true));
  all.push_back(tensor("dv", g->dv, batch_k, rows_k, a.heads_k, a.dim_v, true));
  all.push_back(tensor("d_bias", g->d_bias, a.batch, a.heads_q, a.seqlen_q, a.seqlen_k, true));
  for (int i = 0; i < 4; ++i) {  // a sum over all of that dimension, even over none
    if (a.bias.stride[i] == 0) all.back().extent[i] = 1;
  }
  all.push_back(plain("d_sinks", g->d_sinks, FW_F32, 1, 0, a.heads_q, true));
  all.push_back(plain("d_slopes", g->d_slopes, FW_F32, slope_rows, a.alibi_batch_stride, a.heads_q, true));
  return all;
}

float load(const char* address, int32_t dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, address, dtype == FW_F32 ? 4 : 2);
  if (dtype == FW_F32) return std::bit_cast<float>(bits);
  if (dtype == FW_BF16) return flashwave::to_float(flashwave::BFloat16{static_cast<uint16_t>(bits)});
  return flashwave::to_float(flashwave::Half{static_cast<uint16_t>(bits)});
}

void store(char* address, int32_t dtype, float value) {
  if (dtype == FW_F32) {
    std::memcpy(address, &value, 4);
  } else {
    const uint16_t bits = dtype == FW_BF16 ? flashwave::from_float<flashwave::BFloat16>(value).bits
                                           : flashwave::from_float<flashwave::Half>(value).bits;
    std::memcpy(address, &bits, 2);
  }
}

}  // namespace fuzz
