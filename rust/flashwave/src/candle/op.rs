//! The operations as candle's graph knows them.
use std::sync::{Arc, OnceLock};

use candle_core::{bail, CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::host;
use super::spec::{Paged, Ragged, Spec};
use crate::Device;

type ThreeGradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// Attention over q (batch, seqlen_q, heads_q, d), k (batch, seqlen_k, heads_k, d) and v (batch, seqlen_k, heads_k, d_v),
/// with the fields of candle-flash-attn's operation of this name.
///
/// [`apply`](FlashAttn::apply) is the way to use it. `q.apply_op3(&k, &v, op)` does the same, but its backward repeats the
/// forward to get the softmax statistics, which `apply` keeps.
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// What q·k is multiplied with.
    pub softmax_scale: f32,
    /// ALiBi slopes, f32, (heads_q) or (batch, heads_q).
    pub alibi_slopes: Option<Tensor>,
    /// How many keys to the left of its place a query sees; `None`: all.
    pub window_size_left: Option<usize>,
    /// How many keys to the right of its place a query sees; `None`: all, `Some(0)`: a causal mask.
    pub window_size_right: Option<usize>,
    /// Scores become softcap · tanh(score / softcap).
    pub softcap: Option<f32>,
}

/// Attention over sequences of different lengths behind each other: q (total_q, heads_q, d), k (total_k, heads_k, d),
/// v (total_k, heads_k, d_v); or, with `block_table`, k and v as pages (pages, page_block_size, heads_k, d).
#[derive(Clone, Debug)]
pub struct FlashAttnVarLen {
    /// What q·k is multiplied with.
    pub softmax_scale: f32,
    /// The most queries of a sequence.
    pub max_seqlen_q: usize,
    /// The most keys of a sequence.
    pub max_seqlen_k: usize,
    /// First row of each sequence in q, and the end: (batch + 1), u32 or i32.
    pub seqlens_q: Tensor,
    /// The same for k and v. With pages only the lengths count.
    pub seqlens_k: Tensor,
    /// The pages of each sequence: (batch, blocks), u32 or i32.
    pub block_table: Option<Tensor>,
    /// Ranges [start, end) of positions that see each other whatever the window says: (batch, ranges, 2), i32. Takes the
    /// memory of one head's scores.
    pub mm_prefix_ranges: Option<Tensor>,
    /// Rows of a page; any number.
    pub page_block_size: Option<usize>,
    /// ALiBi slopes, f32, (heads_q) or (batch, heads_q).
    pub alibi_slopes: Option<Tensor>,
    /// How many keys to the left of its place a query sees; `None`: all.
    pub window_size_left: Option<usize>,
    /// How many keys to the right of its place a query sees; `None`: all, `Some(0)`: a causal mask.
    pub window_size_right: Option<usize>,
    /// Scores become softcap · tanh(score / softcap).
    pub softcap: Option<f32>,
}

impl FlashAttn {
    fn spec(&self) -> Result<Spec> {
        Ok(Spec {
            softmax_scale: self.softmax_scale,
            alibi_slopes: self.alibi_slopes.clone(),
            window_size_left: self.window_size_left,
            window_size_right: self.window_size_right,
            softcap: self.softcap,
            ragged: None,
        })
    }
}

impl FlashAttnVarLen {
    fn spec(&self) -> Result<Spec> {
        let paged = match (&self.block_table, self.page_block_size) {
            (Some(table), Some(page_block_size)) => {
                let (block_table, mm_prefix_ranges) = (table.clone(), self.mm_prefix_ranges.clone());
                Some(Paged { block_table, page_block_size, mm_prefix_ranges })
            }
            (None, None) if self.mm_prefix_ranges.is_none() => None,
            (None, None) => bail!("mm_prefix_ranges needs block_table"),
            _ => bail!("block_table and page_block_size belong together"),
        };
        Ok(Spec {
            softmax_scale: self.softmax_scale,
            alibi_slopes: self.alibi_slopes.clone(),
            window_size_left: self.window_size_left,
            window_size_right: self.window_size_right,
            softcap: self.softcap,
            ragged: Some(Ragged {
                seqlens_q: self.seqlens_q.clone(),
                seqlens_k: self.seqlens_k.clone(),
                max_seqlen_q: self.max_seqlen_q,
                max_seqlen_k: self.max_seqlen_k,
                paged,
            }),
        })
    }
}

/// One application of an operation, made anew for each, so that what its forward found out can be kept for its backward.
struct Call {
    spec: Spec,
    /// Where tensors in the host's memory are computed.
    device: Device,
    want_lse: bool,
    lse: Arc<OnceLock<Tensor>>,
    name: &'static str,
}

impl Call {
    fn new(spec: Spec, device: Device, want_lse: bool) -> Self {
        let name = spec.name();
        Call { spec, device, want_lse, lse: Arc::default(), name }
    }

    fn apply(spec: Spec, device: Device, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let name = spec.name();
        Call::apply_named(spec, device, name, [q, k, v])
    }

    fn apply_named(spec: Spec, device: Device, name: &'static str, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let tracked = q.track_op() || k.track_op() || v.track_op();
        q.apply_op3(k, v, Call { name, ..Call::new(spec, device, tracked) })
    }

    fn apply_with_lse(spec: Spec, device: Device, [q, k, v]: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
        let call = Call::new(spec, device, true);
        let lse = call.lse.clone();
        let o = q.apply_op3(k, v, call)?;
        let lse = lse.get().expect("the forward has set it").clone();
        Ok((o, lse))
    }

    fn gradients(&self, [q, k, v, o, d_o]: [&Tensor; 5]) -> Result<ThreeGradients> {
        if self.spec.alibi_slopes.as_ref().is_some_and(Tensor::track_op) {
            bail!("alibi_slopes depends on a variable, but no gradient flows to it: detach it")
        }
        let lse = match self.lse.get() {
            Some(lse) => lse.clone(),
            None => Call::apply_with_lse(self.spec.clone(), self.device, [q, k, v].map(Tensor::detach).each_ref())?.1,
        };
        let d_o = &d_o.contiguous()?;
        let tensors = host::Forward { q, k, v, o, lse: &lse, d_o };
        let [dq, dk, dv] = match q.device() {
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(device) => super::cuda::backward(&self.spec, device, &tensors)?,
            _ => host::backward(&self.spec, self.device, &tensors)?,
        };
        Ok((Some(dq), Some(dk), Some(dv)))
    }

    fn keep(&self, lse: Option<Tensor>) {
        if let Some(lse) = lse {
            // Set already only if somebody applies one Call twice, which nobody can.
            let _ = self.lse.set(lse);
        }
    }
}

impl CustomOp3 for Call {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_l), (k, k_l), (v, v_l)];
        let (o, shapes, lse) = host::forward(&self.spec, self.device, inputs, self.want_lse)?;
        self.keep(lse);
        Ok((o, shapes.o))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let inputs = [(q, q_l), (k, k_l), (v, v_l)];
        let (o, shapes, lse) = super::cuda::forward(&self.spec, inputs, self.want_lse)?;
        self.keep(lse);
        Ok((o, shapes.o))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        bail!("{}: flashwave was built without its feature cuda", self.name())
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor, d_o: &Tensor) -> Result<ThreeGradients> {
        self.gradients([q, k, v, o, d_o])
    }
}

macro_rules! operation {
    ($op:ident, $name:literal) => {
        impl $op {
            /// The attention of q over k and v, differentiable in all three.
            pub fn apply(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
                Call::apply(self.spec()?, Device::cpu(), [q, k, v])
            }

            /// The same, and the logarithm of each row's denominator: f32, (batch, heads_q, seqlen_q), ragged
            /// (heads_q, total_q); -inf for a query that sees no key. No gradient flows through it.
            pub fn apply_with_lse(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
                Call::apply_with_lse(self.spec()?, Device::cpu(), [q, k, v])
            }

            /// As [`apply`](Self::apply), for CPU tensors, computed on any device through copies in its memory.
            pub fn apply_on(&self, device: &Device, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
                Call::apply(self.spec()?, *device, [q, k, v])
            }

            /// As [`apply_on`](Self::apply_on), by an operation that goes by another name in candle's graph and messages.
            #[doc(hidden)]
            pub fn apply_named(&self, device: &Device, name: &'static str, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
                Call::apply_named(self.spec()?, *device, name, [q, k, v])
            }

            /// The operation that such a call applies, for whoever applies it by hand.
            #[doc(hidden)]
            pub fn operation(&self, device: &Device, name: &'static str) -> Result<impl CustomOp3 + Send + Sync> {
                Ok(Call { name, ..Call::new(self.spec()?, *device, false) })
            }

            fn call(&self) -> Result<Call> {
                Ok(Call::new(self.spec()?, Device::cpu(), false))
            }
        }

        impl CustomOp3 for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn cpu_fwd(
                &self,
                q: &CpuStorage,
                q_l: &Layout,
                k: &CpuStorage,
                k_l: &Layout,
                v: &CpuStorage,
                v_l: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                self.call()?.cpu_fwd(q, q_l, k, k_l, v, v_l)
            }

            fn cuda_fwd(
                &self,
                q: &CudaStorage,
                q_l: &Layout,
                k: &CudaStorage,
                k_l: &Layout,
                v: &CudaStorage,
                v_l: &Layout,
            ) -> Result<(CudaStorage, Shape)> {
                self.call()?.cuda_fwd(q, q_l, k, k_l, v, v_l)
            }

            fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor, d_o: &Tensor) -> Result<ThreeGradients> {
                self.call()?.bwd(q, k, v, o, d_o)
            }
        }
    };
}
operation!(FlashAttn, "flash-attn");
operation!(FlashAttnVarLen, "flash-attn-varlen");
