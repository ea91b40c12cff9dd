#![doc = include_str!("../README.md")]

mod device;
pub mod ffi;
mod functions;
mod op;

pub use device::{device, set_device};
pub use ffi::{run_mha_rocm, run_mha_rocm_0_11};
pub use functions::*;
pub use op::FlashAttn;
