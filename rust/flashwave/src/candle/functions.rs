//! candle-flash-attn's functions. Each makes an operation and applies it.
use candle_core::{Result, Tensor};

/// All of candle-flash-attn's functions, where `Result` and `Tensor` are candle's. How an operation is applied to q, k and v
/// is what the crates that have them differ in.
#[doc(hidden)]
#[macro_export]
macro_rules! flash_attn_functions {
    (|$op:ident, $q:ident, $k:ident, $v:ident| $apply:expr) => {
        /// Attention, with a causal mask if `causal`.
        pub fn flash_attn($q: &Tensor, $k: &Tensor, $v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttn {
                softmax_scale,
                alibi_slopes: None,
                window_size_left: None,
                window_size_right: causal.then_some(0),
                softcap: None,
            };
            $apply
        }

        /// Attention in a window around each query's place; left `None` with right `Some(0)` is a causal mask.
        pub fn flash_attn_windowed(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttn {
                softmax_scale,
                alibi_slopes: None,
                window_size_left,
                window_size_right,
                softcap: None,
            };
            $apply
        }

        /// [`flash_attn`] with ALiBi slopes, f32, (heads_q) or (batch, heads_q).
        pub fn flash_attn_alibi(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: &Tensor,
            softmax_scale: f32,
            causal: bool,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttn {
                softmax_scale,
                alibi_slopes: Some(alibi_slopes.clone()),
                window_size_left: None,
                window_size_right: causal.then_some(0),
                softcap: None,
            };
            $apply
        }

        /// [`flash_attn_windowed`] with ALiBi slopes.
        pub fn flash_attn_alibi_windowed(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: &Tensor,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttn {
                softmax_scale,
                alibi_slopes: Some(alibi_slopes.clone()),
                window_size_left,
                window_size_right,
                softcap: None,
            };
            $apply
        }

        /// [`flash_attn_alibi_windowed`] with scores capped to softcap · tanh(score / softcap).
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_alibi_windowed_softcap(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: Option<&Tensor>,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
            softcap: f32,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttn {
                softmax_scale,
                alibi_slopes: alibi_slopes.cloned(),
                window_size_left,
                window_size_right,
                softcap: Some(softcap),
            };
            $apply
        }

        /// Attention of sequences behind each other: q (total_q, heads_q, d), k and v (total_k, heads_k, d).
        ///
        /// `seqlens_q`, `seqlens_k` (batch + 1, u32 or i32) are the first row of each sequence, and the end; `max_seqlen_q`,
        /// `max_seqlen_k` are at least the longest lengths.
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            causal: bool,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: None,
                window_size_left: None,
                window_size_right: causal.then_some(0),
                softcap: None,
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: None,
                mm_prefix_ranges: None,
                page_block_size: None,
            };
            $apply
        }

        /// [`flash_attn_varlen`] in a window.
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen_windowed(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: None,
                window_size_left,
                window_size_right,
                softcap: None,
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: None,
                mm_prefix_ranges: None,
                page_block_size: None,
            };
            $apply
        }

        /// [`flash_attn_varlen_windowed`] with keys and values in pages, (pages, page_block_size, heads_k, d), which
        /// `block_table` (batch, blocks) names. Forward only.
        ///
        /// Positions in one of the `mm_prefix_ranges` (batch, ranges, 2; i32; the end not included) see each other whatever the
        /// window says; that takes the memory of one head's scores.
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen_paged_windowed(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            block_table: &Tensor,
            mm_prefix_ranges: Option<&Tensor>,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
            page_block_size: usize,
            softcap: Option<f32>,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: None,
                window_size_left,
                window_size_right,
                softcap,
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: Some(block_table.clone()),
                mm_prefix_ranges: mm_prefix_ranges.cloned(),
                page_block_size: Some(page_block_size),
            };
            $apply
        }

        /// [`flash_attn_varlen`] with ALiBi slopes.
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen_alibi(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: &Tensor,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            causal: bool,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: Some(alibi_slopes.clone()),
                window_size_left: None,
                window_size_right: causal.then_some(0),
                softcap: None,
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: None,
                mm_prefix_ranges: None,
                page_block_size: None,
            };
            $apply
        }

        /// [`flash_attn_varlen_windowed`] with ALiBi slopes.
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen_alibi_windowed(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: &Tensor,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: Some(alibi_slopes.clone()),
                window_size_left,
                window_size_right,
                softcap: None,
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: None,
                mm_prefix_ranges: None,
                page_block_size: None,
            };
            $apply
        }

        /// [`flash_attn_varlen_alibi_windowed`] with scores capped to softcap · tanh(score / softcap).
        #[allow(clippy::too_many_arguments)]
        pub fn flash_attn_varlen_alibi_windowed_softcap(
            $q: &Tensor,
            $k: &Tensor,
            $v: &Tensor,
            alibi_slopes: Option<&Tensor>,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
            softcap: f32,
        ) -> Result<Tensor> {
            let $op = $crate::candle::FlashAttnVarLen {
                softmax_scale,
                alibi_slopes: alibi_slopes.cloned(),
                window_size_left,
                window_size_right,
                softcap: Some(softcap),
                max_seqlen_q,
                max_seqlen_k,
                seqlens_q: seqlens_q.clone(),
                seqlens_k: seqlens_k.clone(),
                block_table: None,
                mm_prefix_ranges: None,
                page_block_size: None,
            };
            $apply
        }
    };
}

flash_attn_functions!(|op, q, k, v| op.apply(q, k, v));
