/* flashwave: exact attention on AMD GPUs, NVIDIA GPUs and CPUs. The C ABI.
 *
 * One struct describes every attention problem (fw_attention); layouts differ only in strides. The exact mathematics
 * of every field is in docs/semantics.md. All structs start with struct_size, so they can grow without breaking
 * programs built against an older header: fields past the caller's struct_size take their defaults.
 *
 * Every function is safe to call from any number of threads. Functions that can fail return an fw_status; the message
 * for the calling thread is fw_last_error().
 */
#ifndef FLASHWAVE_FLASHWAVE_H
#define FLASHWAVE_FLASHWAVE_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FW_API __declspec(dllexport)
#else
#define FW_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FW_VERSION_MAJOR 0
#define FW_VERSION_MINOR 1
#define FW_VERSION_PATCH 0

/* ---------------------------------------------------------------------------------------------- status and types */

typedef enum fw_status {
  FW_OK = 0,
  FW_INVALID_ARGUMENT = 1, /* the message names the argument and the rule it breaks */
  FW_UNSUPPORTED = 2,      /* a valid problem, but no kernel of this device (or the forced kernel) takes it */
  FW_NO_DEVICE = 3,        /* unknown device name, or its driver or hardware is not there */
  FW_OUT_OF_MEMORY = 4,
  FW_WORKSPACE_TOO_SMALL = 5,
  FW_DEVICE_ERROR = 6, /* the device's driver reported an error */
  FW_INTERNAL_ERROR = 7
} fw_status;

typedef enum fw_dtype { FW_DTYPE_NONE = 0, FW_F16 = 1, FW_BF16 = 2, FW_F32 = 3 } fw_dtype;

/* A strided view. Strides are in elements; their order is said at each field. Absent tensor: data = NULL. */
typedef struct fw_tensor {
  void* data;
  int64_t stride[4];
  int32_t dtype;    /* fw_dtype */
  int32_t reserved; /* 0 */
} fw_tensor;

enum {
  FW_CAUSAL = 1 << 0,             /* key j visible to query i iff j <= i + (keys - queries): bottom-right aligned */
  FW_DETERMINISTIC = 1 << 1,      /* same inputs, same bits, dQ included */
  FW_ROTARY_INTERLEAVED = 1 << 2, /* rotate pairs (2i, 2i+1) instead of (i, i + rotary_dim/2) */
  /* softmax weights may be rounded towards zero where that is faster (mean error compensated); kernels that do not
     gain by it ignore it */
  FW_FAST_ROUNDING = 1 << 4,
  /* forward: o (F32) and lse hold what the queries found among other keys, and become what they find among all.
     backward, on CPUs: the gradients are added to what dq, dk and dv (F32) hold; the other results are written */
  FW_ACCUMULATE = 1 << 5,
  /* q and k are pieces of longer sequences: mask, ALiBi and dropout go by position_q and position_k */
  FW_POSITIONS = 1 << 6,
  /* varlen: rows of o, lse, dq, dk and dv that belong to no sequence are written, too: 0, in lse -inf. Else they are
     not touched */
  FW_FILL_UNUSED = 1 << 7,
  /* those of fw_attention */
  FW_ALL_FLAGS = FW_CAUSAL | FW_DETERMINISTIC | FW_ROTARY_INTERLEAVED | FW_FAST_ROUNDING | FW_ACCUMULATE |
                 FW_POSITIONS | FW_FILL_UNUSED,

  FW_ROTARY_CONJUGATE = 1 << 3, /* turn backwards: the inverse, and the backward, of the rotation */
  FW_ALL_ROTARY_FLAGS = FW_ROTARY_INTERLEAVED | FW_ROTARY_CONJUGATE, /* those of fw_rotary_embedding */

  /* FW_UNSUPPORTED rather than the device's slow path: for callers that know a faster way than that. */
  FW_NO_SLOW_PATH = 1 << 0,
  FW_ALL_EXEC_FLAGS = FW_NO_SLOW_PATH /* those of fw_exec */
};

/* softmax_scale value that stands for 1/sqrt(dim_qk); what fw_attention_init sets. */
#define FW_SCALE_AUTO (-FLT_MAX)

/* ----------------------------------------------------------------------------------------------------- the problem */

typedef struct fw_attention {
  uint32_t struct_size; /* sizeof(fw_attention); set by fw_attention_init */
  uint32_t flags;       /* FW_CAUSAL | ... */

  /* Sizes. With cu_seqlens_*, seqlen_* is an upper bound of the lengths and total_* the rows of the tensor. */
  int64_t batch;
  int64_t seqlen_q, seqlen_k; /* paged: seqlen_k = the most keys a block-table row can address */
  int64_t heads_q, heads_k;   /* heads_q a multiple of heads_k; query head h reads key head h / (heads_q/heads_k) */
  int64_t dim_qk, dim_v;      /* 1..512 each */
  int64_t total_q, total_k;   /* varlen only, else 0 */
  int64_t batch_k;            /* first extent of k and v: cache rows (with cache_batch_idx) or pages (with block_table);
                                 0 = batch */

  /* Tensors: strides (batch, seq, head, dim), dim contiguous. Varlen: stride[0] unused. Paged k, v: stride[0] is the
   * page's, stride[1] that of a row in its page. q, k and v have one dtype, o the same or F32. */
  fw_tensor q, k, v, o;
  fw_tensor lse; /* out, optional, F32: strides (batch, seq, head, -). Varlen: stride[0] unused */

  /* Ragged batches (device pointers, int32). */
  const int32_t* cu_seqlens_q; /* batch+1 rising row offsets into q, o, lse */
  const int32_t* cu_seqlens_k; /* batch+1 rising row offsets into k, v (paged: only the lengths are used) */
  const int32_t* seqused_k;    /* batch: keys in use, counted from the start of the row (before an append) */
  const int32_t* leftpad_k;    /* batch: the first leftpad_k[b] keys are skipped */

  /* KV cache. */
  const int32_t* cache_batch_idx; /* batch: which row of k, v sequence b uses */
  const int32_t* block_table;     /* (batch, ceil(seqlen_k/page_size)): page of each block of keys */
  int64_t block_table_stride;     /* elements between batch rows of block_table */
  int64_t page_size;              /* >= 1 with block_table, else 0 */

  /* Append: k_new, v_new (batch, seqlen_new, heads_k, dim) are written into the cache at row seqused_k[b], then
   * attended. With rotary_cos/sin, k_new and q are rotated first (q into scratch, the caller's q is not changed). */
  int64_t seqlen_new;
  fw_tensor k_new, v_new;
  fw_tensor rotary_cos, rotary_sin; /* (rotary_seqlen, rotary_dim/2): strides (row, 1, -, -) */
  int64_t rotary_seqlen, rotary_dim;

  /* Mask: key j visible to query i iff  -window_left <= j - (i + keys - queries) <= window_right; -1 = no limit. */
  int64_t window_left, window_right;

  /* Score: s = softcap(softmax_scale * q.k) + bias - slope * |i + keys - queries - j|. */
  float softmax_scale;       /* finite, or FW_SCALE_AUTO */
  float softcap;             /* > 0: s = softcap * tanh(s / softcap); 0 = off */
  const float* alibi_slopes; /* (heads_q) with alibi_batch_stride 0, or (batch, heads_q) */
  int64_t alibi_batch_stride;
  const float* sinks; /* (heads_q): a logit that joins each row's softmax, with value 0 */
  fw_tensor bias;     /* strides (batch, head, query, key), any of them 0 to broadcast; F32 or q's dtype */

  /* Dropout on the softmax, Philox-4x32-7 (docs/semantics.md): the same mask forward and backward, on every device. */
  float dropout_p;    /* 0 <= p < 1 */
  int32_t num_splits; /* split-KV: 0 = choose, 1 = never, n <= 256 = exactly n where the forward's kernel splits */
  uint64_t dropout_seed, dropout_offset;

  /* Optional output for tests: the softmax, negative where dropped. F32, strides (batch, head, query, key). */
  fw_tensor probs;

  /* Optional: seed and offset in the device's memory, two numbers that are read when the kernels run, so that a graph
   * of calls may change them between its runs. dropout_seed and dropout_offset are then not read. */
  const uint64_t* dropout_state;

  /* With FW_POSITIONS: where query 0 and key 0 of every sequence lie in the whole one. i + keys - queries above then is
   * i + position_q - position_k, and dropout counts queries and keys from there. Else 0. */
  int64_t position_q, position_k;
  /* Dropout counts head h of sequence b as dropout_first + b * dropout_heads + h, so that parts of the heads or of the
   * batch draw what the whole draws. dropout_heads: 0 = heads_q. */
  int64_t dropout_first, dropout_heads;
} fw_attention;

/* Backward of the problem whose forward gave o and lse. Absent outputs are not computed. */
typedef struct fw_gradients {
  uint32_t struct_size;
  uint32_t reserved;    /* 0 */
  fw_tensor d_o;        /* in: strides as o, dtype as q */
  fw_tensor d_lse;      /* in, optional: as lse */
  fw_tensor dq, dk, dv; /* out: as q, k, v, or F32. Keys that no query sees get 0 */
  fw_tensor d_bias;     /* out: strides as bias's order, 0 exactly where bias has 0 (summed there); F32 or q's dtype */
  float* d_sinks;       /* out: (heads_q) */
  float* d_slopes;      /* out: shape and stride of alibi_slopes */
} fw_gradients;

/* Rotary position embedding of a tensor by itself. Row i of sequence b turns by the angles of position
 * seqlen_offset + seqlen_offsets[b] + i. Its gradient is the same call on the gradient with FW_ROTARY_CONJUGATE. */
typedef struct fw_rotary_embedding {
  uint32_t struct_size; /* sizeof(fw_rotary_embedding); set by fw_rotary_embedding_init */
  uint32_t flags;       /* FW_ROTARY_INTERLEAVED | FW_ROTARY_CONJUGATE */

  int64_t batch;
  int64_t seqlen;        /* with cu_seqlens an upper bound of the lengths */
  int64_t heads, dim;    /* dim: 1..512 */
  int64_t total;         /* rows of x with cu_seqlens, else 0 */
  int64_t rotary_seqlen; /* rows of cos and sin: more than every position */
  int64_t rotary_dim;    /* even, at most dim; the other elements of a row are copied */
  int64_t seqlen_offset; /* >= 0 */

  /* Strides (batch, seq, head, dim), dim contiguous; one dtype. With cu_seqlens stride[0] is unused. out may be
   * exactly x (same data, strides and dtype: in place), else they share no memory. */
  fw_tensor x, out;
  fw_tensor cos, sin; /* (rotary_seqlen, rotary_dim/2): strides (row, 1, -, -); F32 or x's dtype */

  const int32_t* seqlen_offsets; /* optional, batch: added to seqlen_offset */
  const int32_t* cu_seqlens;     /* optional, batch+1 rising row offsets into x and out */
} fw_rotary_embedding;

/* Two results for the same queries, each among keys of its own and without sinks: (o, lse) becomes what the queries
 * find among all keys. Where an lse is -inf its row of o is not read; where both are, o becomes 0. */
typedef struct fw_merging {
  uint32_t struct_size; /* sizeof(fw_merging); set by fw_merging_init */
  uint32_t reserved;    /* 0 */

  int64_t batch, seqlen, heads;
  int64_t dim; /* 1..512 */

  /* Strides (batch, seq, head, dim), dim contiguous; each its own dtype. Packed rows: a batch of 1. */
  fw_tensor o, lse;           /* in and out; lse F32, strides (batch, seq, head, -) */
  fw_tensor o_part, lse_part; /* in: likewise */
} fw_merging;

/* ------------------------------------------------------------------------------------------------------- execution */

/* Runs job(arg, worker) for worker = 0 .. workers-1, in parallel if it can, and returns when all are done. Must call
 * each worker number exactly once. Lets a program lend its own threads to the CPU kernels. */
typedef struct fw_executor {
  void* context;
  void (*run)(void* context, int32_t workers, void (*job)(void* arg, int32_t worker), void* arg);
} fw_executor;

/* An executor on the threads of an OpenMP runtime that the program has loaded, named as dlopen knows it: libgomp, or
 * libomp or libiomp5. A program with OpenMP regions of its own should lend them: an OpenMP thread spins for
 * milliseconds after its last region and takes the core from a second pool of threads. Lives as long as the process. */
FW_API fw_status fw_openmp_executor(const char* library, const fw_executor** executor);

/* What ran. Filled when fw_exec.report is set. */
typedef struct fw_report {
  uint32_t struct_size;
  int32_t splits; /* parts of the keys that are attended apart; where the lengths are in a GPU's memory and the kernel
                     shares the keys out itself, the parts of a sequence if all were equally long */
  char device[32];
  char kernel[64];
  int32_t tile_q, tile_k;
  int32_t threads;
  int32_t reserved;
  uint64_t workspace_size;
} fw_report;

typedef struct fw_exec {
  uint32_t struct_size;
  int32_t num_threads;         /* CPU: at most this many; 0 = fw_get_num_threads() */
  void* stream;                /* GPU: the caller's stream; CPU: NULL */
  void* workspace;             /* device memory, 64-byte aligned; NULL = allocate's, or the library's own */
  size_t workspace_size;       /* bytes at workspace */
  const char* force_kernel;    /* run this kernel or fail; NULL = FLASHWAVE_FORCE_KERNEL, else choose */
  const fw_executor* executor; /* CPU: NULL = the library's own pool */
  fw_report* report;           /* out, optional */

  /* Asked once, where workspace is NULL and the call needs any: device memory, 64-byte aligned, that stays until the
   * work of the call is done on its stream; NULL = there is none. So a call plans once and needs no fw_workspace_size.
   */
  void* (*allocate)(void* context, size_t bytes);
  void* allocate_context;
  uint32_t flags;    /* FW_NO_SLOW_PATH */
  uint32_t reserved; /* 0 */
} fw_exec;

typedef struct fw_device fw_device; /* lives as long as the process; never freed */

typedef struct fw_device_info {
  uint32_t struct_size;
  int32_t index;
  char name[32]; /* "cpu", "cuda:0", "hip:0", "emu:gfx942" */
  char kind[16]; /* "cpu", "cuda", "hip", "emu" */
  char arch[32]; /* "x86-64+avx512", "x86-64+amx", "aarch64+neon", "sm_90", "gfx942" */
  char description[128];
  int64_t compute_units; /* cores, SMs or CUs */
  int64_t memory_bytes;
} fw_device_info;

/* Defaults: all zero but struct_size, softmax_scale = FW_SCALE_AUTO and window_* = -1. Pass sizeof the struct. */
FW_API void fw_attention_init(fw_attention* attention, size_t struct_size);
FW_API void fw_gradients_init(fw_gradients* gradients, size_t struct_size);
FW_API void fw_rotary_embedding_init(fw_rotary_embedding* rotary, size_t struct_size);
FW_API void fw_merging_init(fw_merging* merging, size_t struct_size);
FW_API void fw_exec_init(fw_exec* exec, size_t struct_size);

/* exec may be NULL (all defaults). On a GPU the call returns once the work is queued on the stream. */
FW_API fw_status fw_forward(fw_device* device, const fw_attention* attention, const fw_exec* exec);
FW_API fw_status fw_backward(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                             const fw_exec* exec);

/* Needs no workspace. */
FW_API fw_status fw_rotary(fw_device* device, const fw_rotary_embedding* rotary, const fw_exec* exec);

/* Needs no workspace. */
FW_API fw_status fw_merge(fw_device* device, const fw_merging* merging, const fw_exec* exec);

/* Bytes of workspace the call would need with the same arguments. gradients = NULL asks about the forward. */
FW_API fw_status fw_workspace_size(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                                   const fw_exec* exec, size_t* bytes);

/* Which kernel would run, and why each one before it would not. Writes at most capacity bytes including the final 0;
 * *needed (optional) gets the full length including it. Tensor data is not touched. Of addresses it matters whether
 * they are NULL and how they are aligned: some kernels want rows at multiples of 4 or 16 bytes. So ask with the
 * addresses of the call, or with others of the same alignment; fw_workspace_size likewise. */
typedef enum fw_format { FW_TEXT = 0, FW_JSON = 1 } fw_format;
FW_API fw_status fw_explain(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                            const fw_exec* exec, fw_format format, char* buffer, size_t capacity, size_t* needed);

/* Arithmetic of the problem (masked pairs not counted) and the bytes it must move at least once. */
typedef struct fw_cost {
  uint32_t struct_size;
  uint32_t reserved;
  double flops;
  double bytes;
} fw_cost;
FW_API fw_status fw_problem_cost(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                                 fw_cost* cost);

/* --------------------------------------------------------------------------------------------------------- devices */

/* Real devices present on this machine; index 0 is always "cpu". Emulated devices open by name only. */
FW_API int32_t fw_device_count(void);
FW_API fw_status fw_device_at(int32_t index, fw_device** device);
/* name: "cpu", "cuda[:i]", "hip[:i]", "emu:gfxNNN", or "auto" (the best real device). The name of an architecture
 * alone, "gfx942" or "sm_90", opens a GPU that need not be here: fw_explain, fw_workspace_size, fw_problem_cost and
 * fw_kernel_name answer for it, and whatever needs its memory is answered with FW_NO_DEVICE. */
FW_API fw_status fw_device_open(const char* name, fw_device** device);
FW_API fw_status fw_device_query(fw_device* device, fw_device_info* info);

FW_API fw_status fw_device_alloc(fw_device* device, size_t bytes, void** pointer);
FW_API fw_status fw_device_free(fw_device* device, void* pointer);
typedef enum fw_copy_kind { FW_HOST_TO_DEVICE = 0, FW_DEVICE_TO_HOST = 1, FW_DEVICE_TO_DEVICE = 2 } fw_copy_kind;
FW_API fw_status fw_device_copy(fw_device* device, void* destination, const void* source, size_t bytes,
                                fw_copy_kind kind, void* stream);
FW_API fw_status fw_device_synchronize(fw_device* device, void* stream);

/* What the launches since the last call cost, counted by an emulator: a JSON array with an object for each launch
 * (docs/devices.md). There are no times. Writes at most capacity bytes including the final 0; *needed (optional) gets
 * the full length including it. What was written in full is forgotten. The first call turns on what takes time to
 * count. FW_UNSUPPORTED for devices without counters, which real ones are. */
FW_API fw_status fw_device_counters(fw_device* device, char* buffer, size_t capacity, size_t* needed);

/* What this build carries, a sentence for each maker of GPUs: which GPUs its kernels were compiled for, or why there
 * are none; NULL past the end. */
FW_API const char* fw_build_note(int32_t index);

/* Kernels the device could run, in the order they are tried; NULL past the end. */
FW_API const char* fw_kernel_name(fw_device* device, int32_t index);

/* ------------------------------------------------------------------------------------------------------- housekeeping
 */

FW_API uint32_t fw_version(void); /* major << 16 | minor << 8 | patch */
FW_API const char* fw_version_string(void);
FW_API const char* fw_status_name(fw_status status);
FW_API const char* fw_last_error(void);               /* of the calling thread's latest failed call; "" if none */
FW_API fw_status fw_set_num_threads(int32_t threads); /* CPU threads per call; 0 = all cores this process may use */
FW_API int32_t fw_get_num_threads(void);

#ifdef __cplusplus
}
#endif
#endif
