//! The C ABI of flashwave (`include/flashwave/flashwave.h` and `candle.h`), as it is.
//!
//! What each field and function does is said in those headers. Names are those of C. Use the crate `flashwave` unless
//! you need this.
//!
//! `build.rs` finds the library: in the folder `FLASHWAVE_DIR` (an install prefix, a `lib` or a build folder), else by
//! pkg-config, else it is built with CMake from the source tree that this crate lies in.
//!
#![allow(non_camel_case_types)]
// The documentation is in the headers, once.
#![allow(missing_docs)]

use core::ffi::{c_char, c_int, c_void};

pub type fw_status = c_int;
pub const FW_OK: fw_status = 0;
pub const FW_INVALID_ARGUMENT: fw_status = 1;
pub const FW_UNSUPPORTED: fw_status = 2;
pub const FW_NO_DEVICE: fw_status = 3;
pub const FW_OUT_OF_MEMORY: fw_status = 4;
pub const FW_WORKSPACE_TOO_SMALL: fw_status = 5;
pub const FW_DEVICE_ERROR: fw_status = 6;
pub const FW_INTERNAL_ERROR: fw_status = 7;

pub type fw_dtype = i32;
pub const FW_DTYPE_NONE: fw_dtype = 0;
pub const FW_F16: fw_dtype = 1;
pub const FW_BF16: fw_dtype = 2;
pub const FW_F32: fw_dtype = 3;

pub const FW_CAUSAL: u32 = 1 << 0;
pub const FW_DETERMINISTIC: u32 = 1 << 1;
pub const FW_ROTARY_INTERLEAVED: u32 = 1 << 2;
pub const FW_ROTARY_CONJUGATE: u32 = 1 << 3;
pub const FW_FAST_ROUNDING: u32 = 1 << 4;
pub const FW_ACCUMULATE: u32 = 1 << 5;
pub const FW_POSITIONS: u32 = 1 << 6;
pub const FW_FILL_UNUSED: u32 = 1 << 7;

pub const FW_NO_SLOW_PATH: u32 = 1 << 0;

pub const FW_SCALE_AUTO: f32 = -f32::MAX;

pub type fw_format = c_int;
pub const FW_TEXT: fw_format = 0;
pub const FW_JSON: fw_format = 1;

pub type fw_copy_kind = c_int;
pub const FW_HOST_TO_DEVICE: fw_copy_kind = 0;
pub const FW_DEVICE_TO_HOST: fw_copy_kind = 1;
pub const FW_DEVICE_TO_DEVICE: fw_copy_kind = 2;

/// An open device. Lives as long as the process.
#[repr(C)]
pub struct fw_device {
    _private: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_tensor {
    pub data: *mut c_void,
    pub stride: [i64; 4],
    pub dtype: i32,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_attention {
    pub struct_size: u32,
    pub flags: u32,
    pub batch: i64,
    pub seqlen_q: i64,
    pub seqlen_k: i64,
    pub heads_q: i64,
    pub heads_k: i64,
    pub dim_qk: i64,
    pub dim_v: i64,
    pub total_q: i64,
    pub total_k: i64,
    pub batch_k: i64,
    pub q: fw_tensor,
    pub k: fw_tensor,
    pub v: fw_tensor,
    pub o: fw_tensor,
    pub lse: fw_tensor,
    pub cu_seqlens_q: *const i32,
    pub cu_seqlens_k: *const i32,
    pub seqused_k: *const i32,
    pub leftpad_k: *const i32,
    pub cache_batch_idx: *const i32,
    pub block_table: *const i32,
    pub block_table_stride: i64,
    pub page_size: i64,
    pub seqlen_new: i64,
    pub k_new: fw_tensor,
    pub v_new: fw_tensor,
    pub rotary_cos: fw_tensor,
    pub rotary_sin: fw_tensor,
    pub rotary_seqlen: i64,
    pub rotary_dim: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub softmax_scale: f32,
    pub softcap: f32,
    pub alibi_slopes: *const f32,
    pub alibi_batch_stride: i64,
    pub sinks: *const f32,
    pub bias: fw_tensor,
    pub dropout_p: f32,
    pub num_splits: i32,
    pub dropout_seed: u64,
    pub dropout_offset: u64,
    pub probs: fw_tensor,
    pub dropout_state: *const u64,
    pub position_q: i64,
    pub position_k: i64,
    pub dropout_first: i64,
    pub dropout_heads: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_gradients {
    pub struct_size: u32,
    pub reserved: u32,
    pub d_o: fw_tensor,
    pub d_lse: fw_tensor,
    pub dq: fw_tensor,
    pub dk: fw_tensor,
    pub dv: fw_tensor,
    pub d_bias: fw_tensor,
    pub d_sinks: *mut f32,
    pub d_slopes: *mut f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_rotary_embedding {
    pub struct_size: u32,
    pub flags: u32,
    pub batch: i64,
    pub seqlen: i64,
    pub heads: i64,
    pub dim: i64,
    pub total: i64,
    pub rotary_seqlen: i64,
    pub rotary_dim: i64,
    pub seqlen_offset: i64,
    pub x: fw_tensor,
    pub out: fw_tensor,
    pub cos: fw_tensor,
    pub sin: fw_tensor,
    pub seqlen_offsets: *const i32,
    pub cu_seqlens: *const i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_merging {
    pub struct_size: u32,
    pub reserved: u32,
    pub batch: i64,
    pub seqlen: i64,
    pub heads: i64,
    pub dim: i64,
    pub o: fw_tensor,
    pub lse: fw_tensor,
    pub o_part: fw_tensor,
    pub lse_part: fw_tensor,
}

pub type fw_job = unsafe extern "C" fn(arg: *mut c_void, worker: i32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_executor {
    pub context: *mut c_void,
    pub run: Option<unsafe extern "C" fn(context: *mut c_void, workers: i32, job: fw_job, arg: *mut c_void)>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_report {
    pub struct_size: u32,
    pub splits: i32,
    pub device: [c_char; 32],
    pub kernel: [c_char; 64],
    pub tile_q: i32,
    pub tile_k: i32,
    pub threads: i32,
    pub reserved: i32,
    pub workspace_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_exec {
    pub struct_size: u32,
    pub num_threads: i32,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: usize,
    pub force_kernel: *const c_char,
    pub executor: *const fw_executor,
    pub report: *mut fw_report,
    pub allocate: Option<unsafe extern "C" fn(context: *mut c_void, bytes: usize) -> *mut c_void>,
    pub allocate_context: *mut c_void,
    pub flags: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_device_info {
    pub struct_size: u32,
    pub index: i32,
    pub name: [c_char; 32],
    pub kind: [c_char; 16],
    pub arch: [c_char; 32],
    pub description: [c_char; 128],
    pub compute_units: i64,
    pub memory_bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fw_cost {
    pub struct_size: u32,
    pub reserved: u32,
    pub flops: f64,
    pub bytes: f64,
}

extern "C" {
    pub fn fw_openmp_executor(library: *const c_char, executor: *mut *const fw_executor) -> fw_status;

    pub fn fw_attention_init(attention: *mut fw_attention, struct_size: usize);
    pub fn fw_gradients_init(gradients: *mut fw_gradients, struct_size: usize);
    pub fn fw_rotary_embedding_init(rotary: *mut fw_rotary_embedding, struct_size: usize);
    pub fn fw_merging_init(merging: *mut fw_merging, struct_size: usize);
    pub fn fw_exec_init(exec: *mut fw_exec, struct_size: usize);

    pub fn fw_forward(device: *mut fw_device, attention: *const fw_attention, exec: *const fw_exec) -> fw_status;
    pub fn fw_backward(
        device: *mut fw_device,
        attention: *const fw_attention,
        gradients: *const fw_gradients,
        exec: *const fw_exec,
    ) -> fw_status;
    pub fn fw_rotary(device: *mut fw_device, rotary: *const fw_rotary_embedding, exec: *const fw_exec) -> fw_status;
    pub fn fw_merge(device: *mut fw_device, merging: *const fw_merging, exec: *const fw_exec) -> fw_status;
    pub fn fw_workspace_size(
        device: *mut fw_device,
        attention: *const fw_attention,
        gradients: *const fw_gradients,
        exec: *const fw_exec,
        bytes: *mut usize,
    ) -> fw_status;
    pub fn fw_explain(
        device: *mut fw_device,
        attention: *const fw_attention,
        gradients: *const fw_gradients,
        exec: *const fw_exec,
        format: fw_format,
        buffer: *mut c_char,
        capacity: usize,
        needed: *mut usize,
    ) -> fw_status;
    pub fn fw_problem_cost(
        device: *mut fw_device,
        attention: *const fw_attention,
        gradients: *const fw_gradients,
        cost: *mut fw_cost,
    ) -> fw_status;

    pub fn fw_device_count() -> i32;
    pub fn fw_device_at(index: i32, device: *mut *mut fw_device) -> fw_status;
    pub fn fw_device_open(name: *const c_char, device: *mut *mut fw_device) -> fw_status;
    pub fn fw_device_query(device: *mut fw_device, info: *mut fw_device_info) -> fw_status;
    pub fn fw_device_alloc(device: *mut fw_device, bytes: usize, pointer: *mut *mut c_void) -> fw_status;
    pub fn fw_device_free(device: *mut fw_device, pointer: *mut c_void) -> fw_status;
    pub fn fw_device_copy(
        device: *mut fw_device,
        destination: *mut c_void,
        source: *const c_void,
        bytes: usize,
        kind: fw_copy_kind,
        stream: *mut c_void,
    ) -> fw_status;
    pub fn fw_device_synchronize(device: *mut fw_device, stream: *mut c_void) -> fw_status;
    pub fn fw_device_counters(
        device: *mut fw_device,
        buffer: *mut c_char,
        capacity: usize,
        needed: *mut usize,
    ) -> fw_status;
    pub fn fw_build_note(index: i32) -> *const c_char;
    pub fn fw_kernel_name(device: *mut fw_device, index: i32) -> *const c_char;

    pub fn fw_version() -> u32;
    pub fn fw_version_string() -> *const c_char;
    pub fn fw_status_name(status: fw_status) -> *const c_char;
    pub fn fw_last_error() -> *const c_char;
    pub fn fw_set_num_threads(threads: i32) -> fw_status;
    pub fn fw_get_num_threads() -> i32;

    pub fn run_mha_rocm_0_11(
        q_ptr: *const c_void,
        k_ptr: *const c_void,
        v_ptr: *const c_void,
        o_ptr: *mut c_void,
        softmax_lse_ptr: *mut c_void,
        alibi_slopes_ptr: *const c_void,
        cu_seqlens_q_ptr: *const i32,
        cu_seqlens_k_ptr: *const i32,
        q_batch_stride: u32,
        k_batch_stride: u32,
        v_batch_stride: u32,
        o_batch_stride: u32,
        alibi_slopes_batch_stride: u32,
        q_row_stride: u32,
        k_row_stride: u32,
        v_row_stride: u32,
        o_row_stride: u32,
        q_head_stride: u32,
        k_head_stride: u32,
        v_head_stride: u32,
        o_head_stride: u32,
        b: u32,
        h: u32,
        h_k: u32,
        d: u32,
        d_rounded: u32,
        softmax_scale: f32,
        seqlen_q: u32,
        seqlen_k: u32,
        seqlen_q_rounded: u32,
        seqlen_k_rounded: u32,
        total_q: u32,
        is_bf16: c_int,
        is_causal: c_int,
        unpadded_lse: c_int,
        window_size_left: c_int,
        window_size_right: c_int,
        softcap: f32,
        block_table_ptr: *const i32,
        block_table_batch_stride: u32,
        page_block_size: c_int,
        mm_prefix_ranges_ptr: *const i32,
        mm_prefix_range_batch_stride: u32,
        max_mm_prefix_ranges: c_int,
        stream_ptr: *mut c_void,
    ) -> fw_status;
    pub fn run_mha_rocm(
        q_ptr: *const c_void,
        k_ptr: *const c_void,
        v_ptr: *const c_void,
        o_ptr: *const c_void,
        softmax_lse_ptr: *const c_void,
        alibi_slopes_ptr: *const c_void,
        cu_seqlens_q_ptr: *const i32,
        cu_seqlens_k_ptr: *const i32,
        q_batch_stride: u32,
        k_batch_stride: u32,
        v_batch_stride: u32,
        o_batch_stride: u32,
        alibi_slopes_batch_stride: u32,
        q_row_stride: u32,
        k_row_stride: u32,
        v_row_stride: u32,
        o_row_stride: u32,
        q_head_stride: u32,
        k_head_stride: u32,
        v_head_stride: u32,
        o_head_stride: u32,
        b: u32,
        h: u32,
        h_k: u32,
        d: u32,
        d_rounded: u32,
        softmax_scale: f32,
        seqlen_q: u32,
        seqlen_k: u32,
        seqlen_q_rounded: u32,
        seqlen_k_rounded: u32,
        is_bf16: c_int,
        is_causal: c_int,
        unpadded_lse: c_int,
        window_size_left: c_int,
        window_size_right: c_int,
        softcap: f32,
    );
}
