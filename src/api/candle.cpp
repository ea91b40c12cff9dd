// The calls that candle's op makes, turned into an fw_attention.
#include "flashwave/candle.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "api/call.h"
#include "api/defaults.h"
#include "api/guard.h"
#include "device/hip/hip_device.h"

namespace flashwave::api {
namespace {

Status candle_device(Device** device) {
  const char* name = std::getenv("FLASHWAVE_CANDLE_DEVICE");
  return name != nullptr && *name != '\0' ? find_device(name, device) : current_hip_device(device);
}

fw_tensor tensor(const void* data, fw_dtype dtype, int64_t batch_stride, int64_t row_stride, int64_t head_stride) {
  return {const_cast<void*>(data), {batch_stride, row_stride, head_stride, 1}, dtype, 0};
}

// Where the last sequence ends, which is how many rows q has.
Status read_total_rows(const int32_t* cu_seqlens, uint32_t batch, uint32_t* rows) {
  Device* device = nullptr;
  if (Status status = candle_device(&device); !status.ok()) return status;
  int32_t end = 0;
  Status status = device->copy(&end, cu_seqlens + batch, sizeof end, FW_DEVICE_TO_HOST, nullptr);
  if (status.ok()) status = device->synchronize(nullptr);
  if (!status.ok()) return status;
  if (end < 0) return Status::invalid("cu_seqlens_q_ptr[b] must be at least 0, got " + std::to_string(end));
  *rows = static_cast<uint32_t>(end);
  return {};
}

}  // namespace
}  // namespace flashwave::api

using namespace flashwave;
using namespace flashwave::api;

fw_status run_mha_rocm_0_11(const void* q_ptr, const void* k_ptr, const void* v_ptr, void* o_ptr, void* softmax_lse_ptr,
                            const void* alibi_slopes_ptr, const int32_t* cu_seqlens_q_ptr,
                            const int32_t* cu_seqlens_k_ptr, uint32_t q_batch_stride, uint32_t k_batch_stride,
                            uint32_t v_batch_stride, uint32_t o_batch_stride, uint32_t alibi_slopes_batch_stride,
                            uint32_t q_row_stride, uint32_t k_row_stride, uint32_t v_row_stride, uint32_t o_row_stride,
                            uint32_t q_head_stride, uint32_t k_head_stride, uint32_t v_head_stride,
                            uint32_t o_head_stride, uint32_t b, uint32_t h, uint32_t h_k, uint32_t d,
                            uint32_t /*d_rounded*/, float softmax_scale, uint32_t seqlen_q, uint32_t seqlen_k,
                            uint32_t /*seqlen_q_rounded*/, uint32_t /*seqlen_k_rounded*/, uint32_t total_q, int is_bf16,
                            int is_causal, int unpadded_lse, int window_size_left, int window_size_right, float softcap,
                            const int32_t* block_table_ptr, uint32_t block_table_batch_stride, int page_block_size,
                            const int32_t* mm_prefix_ranges_ptr, uint32_t /*mm_prefix_range_batch_stride*/,
                            int /*max_mm_prefix_ranges*/, void* stream_ptr) {
  const bool varlen_q = cu_seqlens_q_ptr != nullptr, varlen_k = cu_seqlens_k_ptr != nullptr;
  const bool paged = block_table_ptr != nullptr;
  Device* device = nullptr;
  const fw_status refused = guarded([&]() -> Status {
    if (mm_prefix_ranges_ptr != nullptr) {
      return {FW_UNSUPPORTED, "mm_prefix_ranges_ptr must be NULL: ranges that see each other are not supported here"};
    }
    if (softmax_lse_ptr != nullptr && varlen_q && unpadded_lse == 0) {
      return Status::invalid(
          "unpadded_lse must be 1 with cu_seqlens_q_ptr: softmax_lse_ptr is written as (h, total_q)");
    }
    return candle_device(&device);
  });
  if (refused != FW_OK) return refused;

  fw_attention a = default_attention();
  a.flags = is_causal != 0 ? FW_CAUSAL : 0;
  a.batch = b, a.heads_q = h, a.heads_k = h_k, a.dim_qk = a.dim_v = d;
  a.seqlen_q = seqlen_q, a.seqlen_k = seqlen_k;
  const fw_dtype dtype = is_bf16 != 0 ? FW_BF16 : FW_F16;
  a.q = tensor(q_ptr, dtype, q_batch_stride, q_row_stride, q_head_stride);
  a.k = tensor(k_ptr, dtype, k_batch_stride, k_row_stride, k_head_stride);
  a.v = tensor(v_ptr, dtype, v_batch_stride, v_row_stride, v_head_stride);
  a.o = tensor(o_ptr, dtype, o_batch_stride, o_row_stride, o_head_stride);
  if (softmax_lse_ptr != nullptr) {
    a.lse = unpadded_lse != 0 ? tensor(softmax_lse_ptr, FW_F32, seqlen_q, 1, total_q)
                              : tensor(softmax_lse_ptr, FW_F32, int64_t{h} * seqlen_q, 1, seqlen_q);
  }
  a.cu_seqlens_q = cu_seqlens_q_ptr;
  a.cu_seqlens_k = cu_seqlens_k_ptr;
  a.total_q = varlen_q ? total_q : 0;
  // The caller does not say how many rows or pages there are. The checks of addresses, which would ask, are left out
  // for it, and kernels are to take every number of a row or page as it is: there may be as many as there are numbers.
  a.total_k = varlen_k && !paged && seqlen_k > 0 ? INT32_MAX : 0;
  a.batch_k = paged ? INT32_MAX : 0;
  a.block_table = block_table_ptr;
  a.block_table_stride = block_table_batch_stride;
  a.page_size = paged ? page_block_size : 0;
  a.window_left = std::max(window_size_left, -1);
  a.window_right = std::max(window_size_right, -1);
  a.softmax_scale = softmax_scale;
  a.softcap = softcap;
  a.alibi_slopes = static_cast<const float*>(alibi_slopes_ptr);
  a.alibi_batch_stride = alibi_slopes_batch_stride;

  fw_exec exec = default_exec();
  exec.stream = stream_ptr;
  return guarded([&] { return execute(handle_of(device), &a, nullptr, false, &exec, Check::kStructs); });
}

void run_mha_rocm(const void* q_ptr, const void* k_ptr, const void* v_ptr, const void* o_ptr,
                  const void* softmax_lse_ptr, const void* alibi_slopes_ptr, const int32_t* cu_seqlens_q_ptr,
                  const int32_t* cu_seqlens_k_ptr, uint32_t q_batch_stride, uint32_t k_batch_stride,
                  uint32_t v_batch_stride, uint32_t o_batch_stride, uint32_t alibi_slopes_batch_stride,
                  uint32_t q_row_stride, uint32_t k_row_stride, uint32_t v_row_stride, uint32_t o_row_stride,
                  uint32_t q_head_stride, uint32_t k_head_stride, uint32_t v_head_stride, uint32_t o_head_stride,
                  uint32_t b, uint32_t h, uint32_t h_k, uint32_t d, uint32_t d_rounded, float softmax_scale,
                  uint32_t seqlen_q, uint32_t seqlen_k, uint32_t seqlen_q_rounded, uint32_t seqlen_k_rounded,
                  int is_bf16, int is_causal, int unpadded_lse, int window_size_left, int window_size_right,
                  float softcap) {
  uint32_t total_q = b * seqlen_q;
  fw_status status = FW_OK;
  if (cu_seqlens_q_ptr != nullptr) status = guarded([&] { return read_total_rows(cu_seqlens_q_ptr, b, &total_q); });
  if (status == FW_OK) {
    status = run_mha_rocm_0_11(q_ptr, k_ptr, v_ptr, const_cast<void*>(o_ptr), const_cast<void*>(softmax_lse_ptr),
                               alibi_slopes_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, q_batch_stride, k_batch_stride,
                               v_batch_stride, o_batch_stride, alibi_slopes_batch_stride, q_row_stride, k_row_stride,
                               v_row_stride, o_row_stride, q_head_stride, k_head_stride, v_head_stride, o_head_stride,
                               b, h, h_k, d, d_rounded, softmax_scale, seqlen_q, seqlen_k, seqlen_q_rounded,
                               seqlen_k_rounded, total_q, is_bf16, is_causal, unpadded_lse, window_size_left,
                               window_size_right, softcap, nullptr, 0, 0, nullptr, 0, 0, nullptr);
  }
  if (status == FW_OK) return;
  std::fprintf(stderr, "flashwave: run_mha_rocm: %s: %s\n", fw_status_name(status), fw_last_error());
  std::abort();
}
