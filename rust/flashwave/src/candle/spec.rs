//! What is asked for, and the shapes it is asked for: checked, and named in every error.
use candle_core::{bail, DType, Layout, Result, Shape, Tensor};

use crate::{Array, Problem, Sizes};

/// Everything but q, k and v.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub softmax_scale: f32,
    pub alibi_slopes: Option<Tensor>,
    pub window_size_left: Option<usize>,
    pub window_size_right: Option<usize>,
    pub softcap: Option<f32>,
    pub ragged: Option<Ragged>,
}

#[derive(Clone, Debug)]
pub(super) struct Ragged {
    pub seqlens_q: Tensor,
    pub seqlens_k: Tensor,
    pub max_seqlen_q: usize,
    pub max_seqlen_k: usize,
    pub paged: Option<Paged>,
}

#[derive(Clone, Debug)]
pub(super) struct Paged {
    pub block_table: Tensor,
    pub page_block_size: usize,
    pub mm_prefix_ranges: Option<Tensor>,
}

/// Sizes of a call, and how its tensors lie.
#[derive(Clone, Debug)]
pub(super) struct Shapes {
    pub sizes: Sizes,
    pub q: View,
    pub k: View,
    pub v: View,
    pub o: Shape,
    pub lse: Shape,
    /// The softmax statistics as flash-attn lays them out: (batch, head, query), ragged (head, row).
    pub lse_strides: [usize; 4],
    pub total_q: Option<usize>,
    pub total_k: Option<usize>,
    pub pages: usize,
}

/// A tensor's part of a storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub offset: usize,
    /// Elements from the first to behind the last.
    pub span: usize,
    pub strides: [usize; 4],
}

impl View {
    /// As (batch, row, head, dim); a ragged tensor has no batch.
    pub fn of(layout: &Layout) -> View {
        let mut strides = [0; 4];
        strides[4 - layout.stride().len()..].copy_from_slice(layout.stride());
        let reach = layout.dims().iter().zip(layout.stride()).map(|(&size, &stride)| size.saturating_sub(1) * stride);
        let span = if layout.shape().elem_count() == 0 { 0 } else { reach.sum::<usize>() + 1 };
        if layout.dims().last() == Some(&1) {
            strides[3] = 1;
        }
        View { offset: layout.start_offset(), span, strides }
    }
}

fn check_layout(name: &str, layout: &Layout, rank: usize) -> Result<()> {
    if layout.dims().len() != rank {
        bail!("{name} must have rank {rank}, got shape {:?}", layout.shape())
    }
    if layout.dims()[rank - 1] > 1 && layout.stride()[rank - 1] != 1 {
        bail!("the last dim of {name} must be contiguous, got strides {:?}", layout.stride())
    }
    Ok(())
}

fn check_heads(heads_q: usize, heads_k: usize) -> Result<()> {
    if heads_k == 0 || !heads_q.is_multiple_of(heads_k) {
        bail!("the heads of k and v, {heads_k}, must divide those of q, {heads_q}")
    }
    Ok(())
}

impl Spec {
    pub fn name(&self) -> &'static str {
        if self.ragged.is_some() {
            "flash-attn-varlen"
        } else {
            "flash-attn"
        }
    }

    pub fn shapes(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<Shapes> {
        match &self.ragged {
            None => dense_shapes(q, k, v),
            Some(ragged) => ragged.shapes(q, k, v),
        }
    }

    /// The rest of a problem whose tensors are set.
    pub fn configure<'a>(&self, problem: Problem<'a>, shapes: &Shapes, beside: &Beside<'a>) -> Problem<'a> {
        let mut problem = problem.softmax_scale(self.softmax_scale).softcap(self.softcap.unwrap_or(0.0));
        if let Some((slopes, batch_stride)) = beside.alibi_slopes {
            problem = problem.alibi_slopes(slopes, batch_stride);
        }
        problem = match beside.bias {
            // The bias hides what the window would, and shows what ranges add.
            Some(bias) => problem.bias(bias),
            None => problem.window(self.window_size_left, self.window_size_right),
        };
        if let Some(cu_seqlens) = beside.seqlens_q {
            problem = problem.cu_seqlens_q(cu_seqlens, shapes.total_q.unwrap_or(0));
        }
        if let Some(cu_seqlens) = beside.seqlens_k {
            problem = problem.cu_seqlens_k(cu_seqlens, shapes.total_k.unwrap_or(0));
        }
        if let (Some((table, stride)), Some(paged)) = (beside.block_table, self.paged()) {
            problem = problem.block_table(table, stride, paged.page_block_size, shapes.pages);
        }
        problem
    }

    pub fn paged(&self) -> Option<&Paged> {
        self.ragged.as_ref()?.paged.as_ref()
    }
}

/// What a problem has beside its tensors, where the device that computes can read it.
#[derive(Clone, Copy, Default)]
pub(super) struct Beside<'a> {
    pub seqlens_q: Option<Array<'a, i32>>,
    pub seqlens_k: Option<Array<'a, i32>>,
    pub block_table: Option<(Array<'a, i32>, usize)>,
    pub alibi_slopes: Option<(Array<'a, f32>, usize)>,
    pub bias: Option<crate::Tensor<'a>>,
}

fn dense_shapes(q: &Layout, k: &Layout, v: &Layout) -> Result<Shapes> {
    for (name, layout) in [("q", q), ("k", k), ("v", v)] {
        check_layout(name, layout, 4)?;
    }
    let (batch, seqlen_q, heads_q, dim_qk) = q.shape().dims4()?;
    let (_, seqlen_k, heads_k, _) = k.shape().dims4()?;
    let (_, _, _, dim_v) = v.shape().dims4()?;
    if k.dims() != [batch, seqlen_k, heads_k, dim_qk] {
        bail!("shape mismatch: q is {:?}, k {:?}: batch and head dim must be the same", q.shape(), k.shape())
    }
    if v.dims() != [batch, seqlen_k, heads_k, dim_v] {
        bail!("shape mismatch: k is {:?}, v {:?}: all but the head dim must be the same", k.shape(), v.shape())
    }
    check_heads(heads_q, heads_k)?;
    Ok(Shapes {
        sizes: Sizes { batch, seqlen_q, seqlen_k, heads_q, heads_k, dim_qk, dim_v },
        q: View::of(q),
        k: View::of(k),
        v: View::of(v),
        o: (batch, seqlen_q, heads_q, dim_v).into(),
        lse: (batch, heads_q, seqlen_q).into(),
        lse_strides: [heads_q * seqlen_q, 1, seqlen_q, 1],
        total_q: None,
        total_k: None,
        pages: 0,
    })
}

impl Ragged {
    fn shapes(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<Shapes> {
        check_layout("q", q, 3)?;
        let rank = if self.paged.is_some() { 4 } else { 3 };
        check_layout("k", k, rank)?;
        check_layout("v", v, rank)?;
        let (total_q, heads_q, dim_qk) = q.shape().dims3()?;
        let (heads_k, dim_v) = (k.dims()[rank - 2], v.dims()[rank - 1]);
        if k.dims()[rank - 1] != dim_qk {
            bail!("shape mismatch: q is {:?}, k {:?}: the head dim must be the same", q.shape(), k.shape())
        }
        if v.dims()[..rank - 1] != k.dims()[..rank - 1] {
            bail!("shape mismatch: k is {:?}, v {:?}: all but the head dim must be the same", k.shape(), v.shape())
        }
        check_heads(heads_q, heads_k)?;
        let batch = self.batch()?;
        let (total_k, pages) = match &self.paged {
            None => (Some(k.dims()[0]), 0),
            Some(paged) => {
                paged.check(k, batch)?;
                (None, k.dims()[0])
            }
        };
        let (seqlen_q, seqlen_k) = (self.max_seqlen_q, self.max_seqlen_k);
        Ok(Shapes {
            sizes: Sizes { batch, seqlen_q, seqlen_k, heads_q, heads_k, dim_qk, dim_v },
            q: View::of(q),
            k: View::of(k),
            v: View::of(v),
            o: (total_q, heads_q, dim_v).into(),
            lse: (heads_q, total_q).into(),
            lse_strides: [0, 1, total_q, 1],
            total_q: Some(total_q),
            total_k,
            pages,
        })
    }

    fn batch(&self) -> Result<usize> {
        for (name, tensor) in [("seqlens_q", &self.seqlens_q), ("seqlens_k", &self.seqlens_k)] {
            if tensor.rank() != 1 || tensor.elem_count() < 2 {
                bail!("{name} must have rank 1 and at least 2 elements, got shape {:?}", tensor.shape())
            }
            check_index_type(name, tensor)?;
        }
        let (q, k) = (self.seqlens_q.elem_count(), self.seqlens_k.elem_count());
        if q != k {
            bail!("seqlens_q and seqlens_k must have the same number of elements, got {q} and {k}")
        }
        Ok(q - 1)
    }
}

pub(super) fn check_index_type(name: &str, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        DType::U32 | DType::I32 => Ok(()),
        dtype => bail!("{name} must be u32 or i32, got {dtype:?}"),
    }
}

impl Paged {
    fn check(&self, k: &Layout, batch: usize) -> Result<()> {
        if self.page_block_size != k.dims()[1] {
            bail!("page_block_size is {}, but the pages of k have {} rows", self.page_block_size, k.dims()[1])
        }
        if self.block_table.rank() != 2 || self.block_table.dims()[0] != batch {
            bail!("block_table must have shape ({batch}, blocks), got {:?}", self.block_table.shape())
        }
        check_index_type("block_table", &self.block_table)?;
        let Some(ranges) = &self.mm_prefix_ranges else { return Ok(()) };
        if ranges.dtype() != DType::I32 {
            bail!("mm_prefix_ranges must be i32, got {:?}", ranges.dtype())
        }
        if ranges.rank() != 3 || ranges.dims()[0] != batch || ranges.dims()[2] != 2 {
            bail!("mm_prefix_ranges must have shape ({batch}, ranges, 2), got {:?}", ranges.shape())
        }
        Ok(())
    }
}
