//! The functions that an operation on tensors in AMD memory calls, as libflashwave exports them
//! (`include/flashwave/candle.h`).
//!
//! [`run_mha_rocm`] has the 37 parameters that this crate's declaration has always had, and returns nothing: a failure is
//! printed and ends the process. [`run_mha_rocm_0_11`] has those of candle-flash-attn 0.11's `run_mha`, with pages, a
//! stream and `total_q`, and returns a status.
pub use flashwave::sys::{run_mha_rocm, run_mha_rocm_0_11};
