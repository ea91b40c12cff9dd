//! The functions of candle-flash-attn, computed on AMD GPUs by flashwave.
//!
//! Released candle has no tensors in AMD memory. These functions take CPU tensors, copy them to the GPU, compute there,
//! forward and backward, and copy the result back: the kernels can be used, and a model be checked on them, with today's
//! candle. The copies cost more than they gain for small problems.
//!
//! The GPU is `hip:0` unless [`set_device`] or the environment variable `FLASHWAVE_CANDLE_DEVICE` name another device of
//! flashwave: `hip:1`, `cuda:0`, or `emu:gfx942`, an AMD GPU emulated on the CPU.
//!
//! Builds of candle that do have AMD tensors call [`run_mha_rocm`], which libflashwave exports
//! (`include/flashwave/candle.h`).
//!
//! ```
//! use candle_core::{Device, Tensor};
//!
//! candle_flash_rocm::set_device("emu:gfx942")?;
//! let q = Tensor::randn(0f32, 1., (1, 16, 2, 32), &Device::Cpu)?.to_dtype(candle_core::DType::BF16)?;
//! let o = candle_flash_rocm::flash_attn(&q, &q, &q, 0.18, true)?;
//! assert_eq!(o.dims(), q.dims());
//! # Ok::<(), candle_core::Error>(())
//! ```

mod device;
mod functions;

pub use device::{device, set_device};
pub use flashwave::sys::run_mha_rocm;
pub use functions::*;
