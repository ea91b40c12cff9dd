//! Exact attention (the FlashAttention family) on AMD GPUs, NVIDIA GPUs and CPUs.
//!
//! Without features: [`Problem`], a builder over slices or device buffers. With the feature `candle`: the functions of
//! candle-flash-attn for candle tensors, with gradients, on every device, in the module `candle`.
//!
//! What is computed, down to rows that see no key, is `docs/semantics.md` of flashwave; `docs/rust.md` is about this crate.
//!
//! ```
//! use flashwave::{Device, Format, Gradients, Problem, Sizes};
//!
//! let sizes = Sizes { batch: 2, seqlen_q: 64, seqlen_k: 64, heads_q: 4, heads_k: 2, dim_qk: 32, dim_v: 32 };
//! let random = |n: usize, seed: f32| (0..n).map(|i| (i as f32 * 0.7 + seed).sin()).collect::<Vec<f32>>();
//! let (q, k, v) = (random(2 * 64 * 4 * 32, 0.1), random(2 * 64 * 2 * 32, 0.2), random(2 * 64 * 2 * 32, 0.3));
//! let (mut o, mut lse) = (vec![0f32; q.len()], vec![0f32; 2 * 64 * 4]);
//!
//! let device = Device::cpu();
//! let mut problem = Problem::new(sizes, &q, &k, &v, &mut o).lse(&mut lse).causal(true).window(Some(16), None);
//! println!("{}", problem.explain(&device, Format::Text)?);
//! problem.forward(&device)?;
//!
//! let d_o = vec![1f32; o.len()];
//! let (mut dq, mut dk, mut dv) = (vec![0f32; q.len()], vec![0f32; k.len()], vec![0f32; v.len()]);
//! Problem::of_forward(sizes, &q, &k, &v, &o, &lse)
//!     .causal(true)
//!     .window(Some(16), None)
//!     .backward(&device, &mut Gradients::new(&d_o).dq(&mut dq).dk(&mut dk).dv(&mut dv))?;
//! # Ok::<(), flashwave::Error>(())
//! ```

mod device;
mod element;
mod error;
mod problem;
mod run;
mod tensor;

#[cfg(feature = "candle")]
pub mod candle;

pub use device::{Device, DeviceBuffer, DeviceInfo, Stream};
pub use element::{DType, Element, Plain};
pub use error::{Error, Result};
pub use flashwave_sys as sys;
pub use problem::{Problem, Sizes};
pub use run::{Cost, Exec, Format, Gradients, Report};
pub use tensor::{Array, ArrayMut, Tensor, TensorMut};
