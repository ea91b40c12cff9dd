//! The operation as candle's graph knows it.
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::device::device;

pub(crate) const NAME: &str = "flash-attn-rocm";
pub(crate) const VARLEN_NAME: &str = "flash-attn-rocm-varlen";

/// Attention of q over k and v on the chosen GPU, for `q.apply_op3(&k, &v, FlashAttn { .. })`. The functions of this crate
/// apply the same operation and keep what its backward needs; by hand, the backward repeats the forward.
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

impl FlashAttn {
    fn operation(&self) -> Result<impl CustomOp3> {
        let op = flashwave::candle::FlashAttn {
            softmax_scale: self.softmax_scale,
            alibi_slopes: self.alibi_slopes.clone(),
            window_size_left: self.window_size_left,
            window_size_right: self.window_size_right,
            softcap: self.softcap,
        };
        op.operation(&device()?, NAME)
    }
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        NAME
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
        self.operation()?.cpu_fwd(q, q_l, k, k_l, v, v_l)
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.operation()?.bwd(q, k, v, o, d_o)
    }
}
