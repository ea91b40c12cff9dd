//! candle-flash-attn's functions, with its names and arguments, for tensors on every device.
//!
//! Beyond what candle-flash-attn does: CPU tensors, gradients, f32, any head dim up to 512, another one for v than for q and
//! k, pages of any size, inputs with any strides whose last is 1, and the softmax statistics
//! ([`FlashAttn::apply_with_lse`]). Tensors in NVIDIA memory need the feature `cuda`; `candle-flash-rocm` runs CPU tensors
//! on AMD GPUs, real or emulated.
//!
//! A query that sees no key gives zeros. `None` as a window is no limit, and `Some(n)` is exactly n.
//!
//! ```
//! use candle_core::{Device, Tensor};
//!
//! let (batch, seqlen, heads, dim) = (2, 100, 4, 64);
//! let q = Tensor::randn(0f32, 1., (batch, seqlen, heads, dim), &Device::Cpu)?;
//! let k = Tensor::randn(0f32, 1., (batch, seqlen, heads / 2, dim), &Device::Cpu)?; // grouped heads
//! let v = k.clone();
//! let o = flashwave::candle::flash_attn(&q, &k, &v, 1. / (dim as f32).sqrt(), true)?;
//! assert_eq!(o.dims(), [batch, seqlen, heads, dim]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! Gradients:
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//!
//! let q = Var::randn(0f32, 1., (1, 10, 2, 8), &Device::Cpu)?;
//! let o = flashwave::candle::flash_attn(&q, &q, &q, 0.35, true)?;
//! let gradients = o.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&q).unwrap().dims(), q.dims());
//! # Ok::<(), candle_core::Error>(())
//! ```

mod beside;
#[cfg(feature = "cuda")]
mod cuda;
mod functions;
mod host;
mod op;
mod spec;

pub use functions::*;
pub use op::{FlashAttn, FlashAttnVarLen};
