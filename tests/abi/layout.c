/* The layout of every public struct, pinned: a changed number breaks programs built against the released header. */
#include <stddef.h>

#include "flashwave/flashwave.h"

#define FIELD(type, field, offset) \
  _Static_assert(offsetof(type, field) == (offset), "offset of " #field " in " #type " has changed")
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "size of " #type " has changed")
#define VALUE(name, value) _Static_assert((name) == (value), "value of " #name " has changed")

void pin_layout(void);

/* clang-format off */
void pin_layout(void) {
  FIELD(fw_tensor, data, 0);
  FIELD(fw_tensor, stride, 8);
  FIELD(fw_tensor, dtype, 40);
  FIELD(fw_tensor, reserved, 44);
  SIZE(fw_tensor, 48);
  FIELD(fw_attention, struct_size, 0);
  FIELD(fw_attention, flags, 4);
  FIELD(fw_attention, batch, 8);
  FIELD(fw_attention, seqlen_q, 16);
  FIELD(fw_attention, seqlen_k, 24);
  FIELD(fw_attention, heads_q, 32);
  FIELD(fw_attention, heads_k, 40);
  FIELD(fw_attention, dim_qk, 48);
  FIELD(fw_attention, dim_v, 56);
  FIELD(fw_attention, total_q, 64);
  FIELD(fw_attention, total_k, 72);
  FIELD(fw_attention, batch_k, 80);
  FIELD(fw_attention, q, 88);
  FIELD(fw_attention, k, 136);
  FIELD(fw_attention, v, 184);
  FIELD(fw_attention, o, 232);
  FIELD(fw_attention, lse, 280);
  FIELD(fw_attention, cu_seqlens_q, 328);
  FIELD(fw_attention, cu_seqlens_k, 336);
  FIELD(fw_attention, seqused_k, 344);
  FIELD(fw_attention, leftpad_k, 352);
  FIELD(fw_attention, cache_batch_idx, 360);
  FIELD(fw_attention, block_table, 368);
  FIELD(fw_attention, block_table_stride, 376);
  FIELD(fw_attention, page_size, 384);
  FIELD(fw_attention, seqlen_new, 392);
  FIELD(fw_attention, k_new, 400);
  FIELD(fw_attention, v_new, 448);
  FIELD(fw_attention, rotary_cos, 496);
  FIELD(fw_attention, rotary_sin, 544);
  FIELD(fw_attention, rotary_seqlen, 592);
  FIELD(fw_attention, rotary_dim, 600);
  FIELD(fw_attention, window_left, 608);
  FIELD(fw_attention, window_right, 616);
  FIELD(fw_attention, softmax_scale, 624);
  FIELD(fw_attention, softcap, 628);
  FIELD(fw_attention, alibi_slopes, 632);
  FIELD(fw_attention, alibi_batch_stride, 640);
  FIELD(fw_attention, sinks, 648);
  FIELD(fw_attention, bias, 656);
  FIELD(fw_attention, dropout_p, 704);
  FIELD(fw_attention, num_splits, 708);
  FIELD(fw_attention, dropout_seed, 712);
  FIELD(fw_attention, dropout_offset, 720);
  FIELD(fw_attention, probs, 728);
  SIZE(fw_attention, 776);
  FIELD(fw_gradients, struct_size, 0);
  FIELD(fw_gradients, reserved, 4);
  FIELD(fw_gradients, d_o, 8);
  FIELD(fw_gradients, d_lse, 56);
  FIELD(fw_gradients, dq, 104);
  FIELD(fw_gradients, dk, 152);
  FIELD(fw_gradients, dv, 200);
  FIELD(fw_gradients, d_bias, 248);
  FIELD(fw_gradients, d_sinks, 296);
  FIELD(fw_gradients, d_slopes, 304);
  SIZE(fw_gradients, 312);
  FIELD(fw_rotary_embedding, struct_size, 0);
  FIELD(fw_rotary_embedding, flags, 4);
  FIELD(fw_rotary_embedding, batch, 8);
  FIELD(fw_rotary_embedding, seqlen, 16);
  FIELD(fw_rotary_embedding, heads, 24);
  FIELD(fw_rotary_embedding, dim, 32);
  FIELD(fw_rotary_embedding, total, 40);
  FIELD(fw_rotary_embedding, rotary_seqlen, 48);
  FIELD(fw_rotary_embedding, rotary_dim, 56);
  FIELD(fw_rotary_embedding, seqlen_offset, 64);
  FIELD(fw_rotary_embedding, x, 72);
  FIELD(fw_rotary_embedding, out, 120);
  FIELD(fw_rotary_embedding, cos, 168);
  FIELD(fw_rotary_embedding, sin, 216);
  FIELD(fw_rotary_embedding, seqlen_offsets, 264);
  FIELD(fw_rotary_embedding, cu_seqlens, 272);
  SIZE(fw_rotary_embedding, 280);
  FIELD(fw_executor, context, 0);
  FIELD(fw_executor, run, 8);
  SIZE(fw_executor, 16);
  FIELD(fw_report, struct_size, 0);
  FIELD(fw_report, splits, 4);
  FIELD(fw_report, device, 8);
  FIELD(fw_report, kernel, 40);
  FIELD(fw_report, tile_q, 104);
  FIELD(fw_report, tile_k, 108);
  FIELD(fw_report, threads, 112);
  FIELD(fw_report, reserved, 116);
  FIELD(fw_report, workspace_size, 120);
  SIZE(fw_report, 128);
  FIELD(fw_exec, struct_size, 0);
  FIELD(fw_exec, num_threads, 4);
  FIELD(fw_exec, stream, 8);
  FIELD(fw_exec, workspace, 16);
  FIELD(fw_exec, workspace_size, 24);
  FIELD(fw_exec, force_kernel, 32);
  FIELD(fw_exec, executor, 40);
  FIELD(fw_exec, report, 48);
  SIZE(fw_exec, 56);
  FIELD(fw_device_info, struct_size, 0);
  FIELD(fw_device_info, index, 4);
  FIELD(fw_device_info, name, 8);
  FIELD(fw_device_info, kind, 40);
  FIELD(fw_device_info, arch, 56);
  FIELD(fw_device_info, description, 88);
  FIELD(fw_device_info, compute_units, 216);
  FIELD(fw_device_info, memory_bytes, 224);
  SIZE(fw_device_info, 232);
  FIELD(fw_cost, struct_size, 0);
  FIELD(fw_cost, reserved, 4);
  FIELD(fw_cost, flops, 8);
  FIELD(fw_cost, bytes, 16);
  SIZE(fw_cost, 24);

  VALUE(FW_OK, 0);
  VALUE(FW_INVALID_ARGUMENT, 1);
  VALUE(FW_UNSUPPORTED, 2);
  VALUE(FW_NO_DEVICE, 3);
  VALUE(FW_OUT_OF_MEMORY, 4);
  VALUE(FW_WORKSPACE_TOO_SMALL, 5);
  VALUE(FW_DEVICE_ERROR, 6);
  VALUE(FW_INTERNAL_ERROR, 7);
  VALUE(FW_DTYPE_NONE, 0);
  VALUE(FW_F16, 1);
  VALUE(FW_BF16, 2);
  VALUE(FW_F32, 3);
  VALUE(FW_CAUSAL, 1);
  VALUE(FW_DETERMINISTIC, 2);
  VALUE(FW_ROTARY_INTERLEAVED, 4);
  VALUE(FW_FAST_ROUNDING, 16);
  VALUE(FW_ALL_FLAGS, 23);
  VALUE(FW_ROTARY_CONJUGATE, 8);
  VALUE(FW_ALL_ROTARY_FLAGS, 12);
  VALUE(FW_TEXT, 0);
  VALUE(FW_JSON, 1);
  VALUE(FW_HOST_TO_DEVICE, 0);
  VALUE(FW_DEVICE_TO_HOST, 1);
  VALUE(FW_DEVICE_TO_DEVICE, 2);
  SIZE(fw_status, 4);
  SIZE(fw_format, 4);
  SIZE(fw_copy_kind, 4);
}
