/* For builds of candle with AMD tensors: the function that their flash attention op calls, in two forms.
 *
 *   run_mha_rocm        the 37 parameters of candle-flash-rocm's src/ffi.rs, nothing returned
 *   run_mha_rocm_0_11   the 45 parameters of run_mha in candle-flash-attn 0.11, in the same order, and a status
 *
 * All pointers are device memory; strides are in elements, the head dimension is contiguous. The work is queued on the
 * calling thread's current HIP device, or on the device that the environment variable FLASHWAVE_CANDLE_DEVICE names
 * ("hip:1", "emu:gfx942", ...).
 */
#ifndef FLASHWAVE_CANDLE_H
#define FLASHWAVE_CANDLE_H

#include "flashwave/flashwave.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Not looked at, since they follow from the others: d_rounded, seqlen_q_rounded, seqlen_k_rounded, and total_q without
 * cu_seqlens_q_ptr.
 *
 * Dense: q, o (b, seqlen_q, h, d), k, v (b, seqlen_k, h_k, d). With cu_seqlens_* (b+1 row offsets): (rows, heads, d),
 * total_q rows of q and o; seqlen_* are upper bounds and *_batch_stride are not used. With block_table_ptr
 * (b rows, block_table_batch_stride apart): k and v are pages of page_block_size rows, *_batch_stride apart, and
 * cu_seqlens_k_ptr only gives lengths.
 *
 * softmax_lse_ptr: optional output, fp32, (b, h, seqlen_q), or (h, total_q) with unpadded_lse, which cu_seqlens_q_ptr
 * needs; -inf for a query that sees no key. alibi_slopes_ptr: optional, fp32, h slopes, alibi_slopes_batch_stride
 * apart for each sequence. Windows: negative = no limit. softcap: 0 = off. mm_prefix_ranges_ptr must be NULL: it is
 * answered with FW_UNSUPPORTED. The work is queued on stream_ptr (a hipStream_t; NULL: the default stream).
 *
 * How many rows or pages k and v have is not said, so an o or softmax_lse that overlaps another tensor is not noticed.
 * The message of a failure is fw_last_error(). */
FW_API fw_status run_mha_rocm_0_11(const void* q_ptr, const void* k_ptr, const void* v_ptr, void* o_ptr,
                                   void* softmax_lse_ptr, const void* alibi_slopes_ptr, const int32_t* cu_seqlens_q_ptr,
                                   const int32_t* cu_seqlens_k_ptr, uint32_t q_batch_stride, uint32_t k_batch_stride,
                                   uint32_t v_batch_stride, uint32_t o_batch_stride, uint32_t alibi_slopes_batch_stride,
                                   uint32_t q_row_stride, uint32_t k_row_stride, uint32_t v_row_stride,
                                   uint32_t o_row_stride, uint32_t q_head_stride, uint32_t k_head_stride,
                                   uint32_t v_head_stride, uint32_t o_head_stride, uint32_t b, uint32_t h, uint32_t h_k,
                                   uint32_t d, uint32_t d_rounded, float softmax_scale, uint32_t seqlen_q,
                                   uint32_t seqlen_k, uint32_t seqlen_q_rounded, uint32_t seqlen_k_rounded,
                                   uint32_t total_q, int is_bf16, int is_causal, int unpadded_lse, int window_size_left,
                                   int window_size_right, float softcap, const int32_t* block_table_ptr,
                                   uint32_t block_table_batch_stride, int page_block_size,
                                   const int32_t* mm_prefix_ranges_ptr, uint32_t mm_prefix_range_batch_stride,
                                   int max_mm_prefix_ranges, void* stream_ptr);

/* The same without pages and prefix ranges, on the default stream. total_q is read from the device, at the end of
 * cu_seqlens_q_ptr, which waits for that stream.
 *
 * It returns nothing, so that a caller could not tell an output that was never written from a result: a failure is
 * printed and ends the process (abort). */
FW_API void run_mha_rocm(const void* q_ptr, const void* k_ptr, const void* v_ptr, const void* o_ptr,
                         const void* softmax_lse_ptr, const void* alibi_slopes_ptr, const int32_t* cu_seqlens_q_ptr,
                         const int32_t* cu_seqlens_k_ptr, uint32_t q_batch_stride, uint32_t k_batch_stride,
                         uint32_t v_batch_stride, uint32_t o_batch_stride, uint32_t alibi_slopes_batch_stride,
                         uint32_t q_row_stride, uint32_t k_row_stride, uint32_t v_row_stride, uint32_t o_row_stride,
                         uint32_t q_head_stride, uint32_t k_head_stride, uint32_t v_head_stride, uint32_t o_head_stride,
                         uint32_t b, uint32_t h, uint32_t h_k, uint32_t d, uint32_t d_rounded, float softmax_scale,
                         uint32_t seqlen_q, uint32_t seqlen_k, uint32_t seqlen_q_rounded, uint32_t seqlen_k_rounded,
                         int is_bf16, int is_causal, int unpadded_lse, int window_size_left, int window_size_right,
                         float softcap);

#ifdef __cplusplus
}
#endif
#endif
