use flashwave_sys as sys;

use crate::device::Device;
use crate::error::{check, Error, Result};
use crate::tensor::{Array, Place, RawTensor, Tensor, TensorMut, ABSENT};

/// The sizes of an attention problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Queries of each sequence; with `cu_seqlens_q` the most.
    pub seqlen_q: usize,
    /// Keys of each sequence; with `cu_seqlens_k` or a block table the most.
    pub seqlen_k: usize,
    /// Heads of q and o: a multiple of `heads_k`.
    pub heads_q: usize,
    /// Heads of k and v.
    pub heads_k: usize,
    /// Elements of a row of q and k, 1 to 512.
    pub dim_qk: usize,
    /// Elements of a row of v and o, 1 to 512.
    pub dim_v: usize,
}

/// An attention problem: sizes, tensors and options. What is computed is written in `docs/semantics.md`.
///
/// Made by [`new`](Problem::new) and the methods that return it; run by [`forward`](Problem::forward) and
/// [`backward`](Problem::backward). Tensors without [`strides`](Tensor::strides) have no gaps; their shapes are
/// `q`, `o` (batch, seqlen_q, heads_q, dim), `k`, `v` (batch, seqlen_k, heads_k, dim), `lse` (batch, seqlen_q, heads_q).
/// Every slice and buffer is checked to be long enough for its strides.
///
/// ```
/// use flashwave::{Device, Problem, Sizes};
///
/// let sizes = Sizes { batch: 1, seqlen_q: 3, seqlen_k: 3, heads_q: 2, heads_k: 1, dim_qk: 4, dim_v: 4 };
/// let q: Vec<f32> = (0..24).map(|i| (i as f32).sin()).collect();
/// let k: Vec<f32> = (0..12).map(|i| (i as f32).cos()).collect();
/// let v: Vec<f32> = (0..12).map(|i| i as f32).collect();
/// let mut o = vec![0f32; 24];
/// let mut lse = vec![0f32; 6];
/// let report = Problem::new(sizes, &q, &k, &v, &mut o).lse(&mut lse).causal(true).forward(&Device::cpu())?;
/// assert_eq!(o[..4], v[..4]); // the first query sees one key
/// assert!(!report.kernel().is_empty());
/// # Ok::<(), flashwave::Error>(())
/// ```
#[derive(Debug)]
pub struct Problem<'a> {
    pub(crate) a: sys::fw_attention,
    q: RawTensor,
    k: RawTensor,
    v: RawTensor,
    o: RawTensor,
    lse: Option<RawTensor>,
    k_new: Option<RawTensor>,
    v_new: Option<RawTensor>,
    rotary_cos: Option<RawTensor>,
    rotary_sin: Option<RawTensor>,
    bias: Option<RawTensor>,
    probs: Option<RawTensor>,
    indices: [Option<Array<'a, i32>>; INDICES.len()],
    alibi_slopes: Option<Array<'a, f32>>,
    sinks: Option<Array<'a, f32>>,
    written: Written,
}

// SAFETY: everything it points to is borrowed, shared or exclusively, for 'a; the numbers themselves may be used from any
// thread. Through a shared reference nothing is written.
unsafe impl Send for Problem<'_> {}
unsafe impl Sync for Problem<'_> {}

/// What the problem may write to.
#[derive(Clone, Copy, Debug)]
struct Written {
    o: bool,
    cache: bool,
}

/// Numbers of the index arrays in `Problem::indices`.
const CU_SEQLENS_Q: usize = 0;
const CU_SEQLENS_K: usize = 1;
const SEQUSED_K: usize = 2;
const LEFTPAD_K: usize = 3;
const CACHE_BATCH_IDX: usize = 4;
const BLOCK_TABLE: usize = 5;
const INDICES: [&str; 6] = ["cu_seqlens_q", "cu_seqlens_k", "seqused_k", "leftpad_k", "cache_batch_idx", "block_table"];

fn size(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX) // which the library refuses, naming the field
}

/// -1 stands for no limit.
fn limit(value: Option<usize>) -> i64 {
    value.map_or(-1, size)
}

impl<'a> Problem<'a> {
    /// o = softmax(q kᵀ / √dim_qk) v, without a mask.
    pub fn new(
        sizes: Sizes,
        q: impl Into<Tensor<'a>>,
        k: impl Into<Tensor<'a>>,
        v: impl Into<Tensor<'a>>,
        o: impl Into<TensorMut<'a>>,
    ) -> Self {
        let written = Written { o: true, cache: false };
        Self::of(sizes, [q.into().raw, k.into().raw, v.into().raw, o.into().raw], written)
    }

    /// The problem of a [`backward`](Problem::backward): `o` and `lse` are what its forward gave.
    pub fn of_forward(
        sizes: Sizes,
        q: impl Into<Tensor<'a>>,
        k: impl Into<Tensor<'a>>,
        v: impl Into<Tensor<'a>>,
        o: impl Into<Tensor<'a>>,
        lse: impl Into<Tensor<'a>>,
    ) -> Self {
        let written = Written { o: false, cache: false };
        let tensors = [q.into().raw, k.into().raw, v.into().raw, o.into().raw];
        Problem { lse: Some(lse.into().raw), ..Self::of(sizes, tensors, written) }
    }

    /// As [`new`](Problem::new) with `k` and `v` a cache, which [`append`](Problem::append) writes to.
    pub fn with_cache(
        sizes: Sizes,
        q: impl Into<Tensor<'a>>,
        k: impl Into<TensorMut<'a>>,
        v: impl Into<TensorMut<'a>>,
        o: impl Into<TensorMut<'a>>,
    ) -> Self {
        let written = Written { o: true, cache: true };
        Self::of(sizes, [q.into().raw, k.into().raw, v.into().raw, o.into().raw], written)
    }

    fn of(sizes: Sizes, [q, k, v, o]: [RawTensor; 4], written: Written) -> Self {
        let mut a = std::mem::MaybeUninit::uninit();
        // SAFETY: fills the whole struct.
        let mut a = unsafe {
            sys::fw_attention_init(a.as_mut_ptr(), size_of::<sys::fw_attention>());
            a.assume_init()
        };
        (a.batch, a.seqlen_q, a.seqlen_k) = (size(sizes.batch), size(sizes.seqlen_q), size(sizes.seqlen_k));
        (a.heads_q, a.heads_k) = (size(sizes.heads_q), size(sizes.heads_k));
        (a.dim_qk, a.dim_v) = (size(sizes.dim_qk), size(sizes.dim_v));
        let (lse, bias, probs) = (None, None, None);
        let (k_new, v_new, rotary_cos, rotary_sin) = (None, None, None, None);
        let (indices, alibi_slopes, sinks) = ([None; INDICES.len()], None, None);
        Problem {
            a,
            q,
            k,
            v,
            o,
            lse,
            k_new,
            v_new,
            rotary_cos,
            rotary_sin,
            bias,
            probs,
            indices,
            alibi_slopes,
            sinks,
            written,
        }
    }

    /// Also writes the logarithm of each row's denominator: f32, (batch, seqlen_q, heads_q), in the first three strides.
    pub fn lse(mut self, lse: impl Into<TensorMut<'a>>) -> Self {
        self.lse = Some(lse.into().raw);
        self
    }

    /// Whether the last query sees all keys, the one before it all but the last, and so on.
    pub fn causal(self, causal: bool) -> Self {
        self.flag(sys::FW_CAUSAL, causal)
    }

    /// How far each query sees to the left and right of its place, which is that of the causal mask. `None`: no limit.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        (self.a.window_left, self.a.window_right) = (limit(left), limit(right));
        self
    }

    /// What q·k is multiplied with, instead of 1/√dim_qk.
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        self.a.softmax_scale = scale;
        self
    }

    /// Scores become softcap · tanh(score / softcap); 0: they do not.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.a.softcap = softcap;
        self
    }

    /// ALiBi: `heads_q` slopes for all sequences, or `batch_stride` after each other for each of them.
    pub fn alibi_slopes(mut self, slopes: impl Into<Array<'a, f32>>, batch_stride: usize) -> Self {
        self.alibi_slopes = Some(slopes.into());
        self.a.alibi_batch_stride = size(batch_stride);
        self
    }

    /// A logit for each head that joins the softmax of every row, with value 0.
    pub fn sinks(mut self, sinks: impl Into<Array<'a, f32>>) -> Self {
        self.sinks = Some(sinks.into());
        self
    }

    /// Added to the scores: (batch, heads_q, seqlen_q, seqlen_k), where a stride of 0 broadcasts.
    pub fn bias(mut self, bias: impl Into<Tensor<'a>>) -> Self {
        self.bias = Some(bias.into().raw);
        self
    }

    /// Drops weights with probability `p`; which ones is a function of seed and offset, the same in a backward.
    pub fn dropout(mut self, p: f32, seed: u64, offset: u64) -> Self {
        (self.a.dropout_p, self.a.dropout_seed, self.a.dropout_offset) = (p, seed, offset);
        self
    }

    /// Queries of all sequences, `total` rows, behind each other: row `cu_seqlens[b]` is the first of sequence b.
    pub fn cu_seqlens_q(mut self, cu_seqlens: impl Into<Array<'a, i32>>, total: usize) -> Self {
        self.indices[CU_SEQLENS_Q] = Some(cu_seqlens.into());
        self.a.total_q = size(total);
        self
    }

    /// The same for keys. With a block table `total` is 0, and only the lengths count.
    pub fn cu_seqlens_k(mut self, cu_seqlens: impl Into<Array<'a, i32>>, total: usize) -> Self {
        self.indices[CU_SEQLENS_K] = Some(cu_seqlens.into());
        self.a.total_k = size(total);
        self
    }

    /// How many keys of each sequence are in use, before an append.
    pub fn seqused_k(mut self, lengths: impl Into<Array<'a, i32>>) -> Self {
        self.indices[SEQUSED_K] = Some(lengths.into());
        self
    }

    /// How many keys of each sequence are skipped at its start.
    pub fn leftpad_k(mut self, lengths: impl Into<Array<'a, i32>>) -> Self {
        self.indices[LEFTPAD_K] = Some(lengths.into());
        self
    }

    /// Which of the `rows` batch rows of k and v each sequence uses.
    pub fn cache_batch_idx(mut self, index: impl Into<Array<'a, i32>>, rows: usize) -> Self {
        self.indices[CACHE_BATCH_IDX] = Some(index.into());
        self.a.batch_k = size(rows);
        self
    }

    /// k and v are `pages` of `page_size` rows; row b of the table, `stride` after the one before, names those of
    /// sequence b.
    pub fn block_table(
        mut self,
        table: impl Into<Array<'a, i32>>,
        stride: usize,
        page_size: usize,
        pages: usize,
    ) -> Self {
        self.indices[BLOCK_TABLE] = Some(table.into());
        (self.a.block_table_stride, self.a.page_size, self.a.batch_k) = (size(stride), size(page_size), size(pages));
        self
    }

    /// First writes `seqlen_new` keys and values behind the `seqused_k` in the cache ([`with_cache`](Problem::with_cache)).
    pub fn append(mut self, k_new: impl Into<Tensor<'a>>, v_new: impl Into<Tensor<'a>>, seqlen_new: usize) -> Self {
        (self.k_new, self.v_new) = (Some(k_new.into().raw), Some(v_new.into().raw));
        self.a.seqlen_new = size(seqlen_new);
        self
    }

    /// Turns appended keys and the queries by their position: `cos`, `sin` are (seqlen, dim/2).
    pub fn rotary(
        mut self,
        cos: impl Into<Tensor<'a>>,
        sin: impl Into<Tensor<'a>>,
        seqlen: usize,
        dim: usize,
        interleaved: bool,
    ) -> Self {
        (self.rotary_cos, self.rotary_sin) = (Some(cos.into().raw), Some(sin.into().raw));
        (self.a.rotary_seqlen, self.a.rotary_dim) = (size(seqlen), size(dim));
        self.flag(sys::FW_ROTARY_INTERLEAVED, interleaved)
    }

    /// Whether dq must have the same bits every time, also on a GPU.
    pub fn deterministic(self, deterministic: bool) -> Self {
        self.flag(sys::FW_DETERMINISTIC, deterministic)
    }

    /// Whether weights may be rounded towards zero where that is faster.
    pub fn fast_rounding(self, allowed: bool) -> Self {
        self.flag(sys::FW_FAST_ROUNDING, allowed)
    }

    /// Whether rows of packed results that belong to no sequence are written, too: 0, -inf in lse.
    pub fn fill_unused(self, on: bool) -> Self {
        self.flag(sys::FW_FILL_UNUSED, on)
    }

    /// Into how many parts the keys are cut: 0 lets the library choose, 1 never.
    pub fn num_splits(mut self, splits: usize) -> Self {
        self.a.num_splits = i32::try_from(splits).unwrap_or(i32::MAX);
        self
    }

    /// Also writes the softmax, negative where dropped, for tests: f32, (batch, heads_q, seqlen_q, seqlen_k).
    pub fn probs(mut self, probs: impl Into<TensorMut<'a>>) -> Self {
        self.probs = Some(probs.into().raw);
        self
    }

    fn flag(mut self, flag: u32, on: bool) -> Self {
        self.a.flags = if on { self.a.flags | flag } else { self.a.flags & !flag };
        self
    }

    /// (batch, rows, heads, dim) of q and what is laid out as it.
    pub(crate) fn extents_q(&self, dim: i64) -> [i64; 4] {
        match self.indices[CU_SEQLENS_Q] {
            Some(_) => [1, self.a.total_q, self.a.heads_q, dim],
            None => [self.a.batch, self.a.seqlen_q, self.a.heads_q, dim],
        }
    }

    /// The same of k.
    pub(crate) fn extents_k(&self, dim: i64) -> [i64; 4] {
        let a = &self.a;
        if self.indices[BLOCK_TABLE].is_some() {
            [a.batch_k, a.page_size, a.heads_k, dim]
        } else if self.indices[CU_SEQLENS_K].is_some() {
            [1, a.total_k, a.heads_k, dim]
        } else {
            [if a.batch_k > 0 { a.batch_k } else { a.batch }, a.seqlen_k, a.heads_k, dim]
        }
    }

    /// Of the bias, where they were given.
    pub(crate) fn bias_strides(&self) -> [Option<usize>; 4] {
        self.bias.and_then(|bias| bias.strides).map_or([None; 4], |strides| strides.map(Some))
    }

    /// (batch, heads, queries, keys).
    pub(crate) fn extents_scores(&self) -> [i64; 4] {
        [self.a.batch, self.a.heads_q, self.a.seqlen_q, self.a.seqlen_k]
    }

    /// The C struct, with everything in it checked to be long enough and, with a device, to lie where it can be read.
    pub(crate) fn checked(&self, device: Option<Device>, forward: bool) -> Result<sys::fw_attention> {
        if forward && !self.written.o {
            return Err(Error::invalid("o and lse are only read (Problem::of_forward): this problem has no forward"));
        }
        if self.k_new.is_some() && !self.written.cache {
            return Err(Error::invalid("append writes to k and v: give them by Problem::with_cache"));
        }
        let mut a = self.a;
        let half = a.rotary_dim / 2;
        let new_rows = [a.batch, a.seqlen_new, a.heads_k];
        let [b, s, h] = new_rows;
        let tensors = [
            ("q", Some(self.q), self.extents_q(a.dim_qk), &mut a.q),
            ("k", Some(self.k), self.extents_k(a.dim_qk), &mut a.k),
            ("v", Some(self.v), self.extents_k(a.dim_v), &mut a.v),
            ("o", Some(self.o), self.extents_q(a.dim_v), &mut a.o),
            ("lse", self.lse, self.extents_q(1), &mut a.lse),
            ("k_new", self.k_new, [b, s, h, a.dim_qk], &mut a.k_new),
            ("v_new", self.v_new, [b, s, h, a.dim_v], &mut a.v_new),
            ("rotary_cos", self.rotary_cos, [a.rotary_seqlen, half, 1, 1], &mut a.rotary_cos),
            ("rotary_sin", self.rotary_sin, [a.rotary_seqlen, half, 1, 1], &mut a.rotary_sin),
            ("bias", self.bias, self.extents_scores(), &mut a.bias),
            ("probs", self.probs, self.extents_scores(), &mut a.probs),
        ];
        for (name, tensor, extents, field) in tensors {
            *field = checked_tensor(name, tensor, extents, device)?;
        }
        let [cu_q, cu_k, seqused, leftpad, cache_idx, table] = self.index_pointers(device)?;
        (a.cu_seqlens_q, a.cu_seqlens_k, a.seqused_k) = (cu_q, cu_k, seqused);
        (a.leftpad_k, a.cache_batch_idx, a.block_table) = (leftpad, cache_idx, table);
        let heads = i128::from(a.heads_q);
        if let Some(slopes) = &self.alibi_slopes {
            let rows = i128::from(a.batch - 1).max(0) * i128::from(a.alibi_batch_stride);
            a.alibi_slopes = slopes.pointer("alibi_slopes", rows + heads, device)?;
        }
        if let Some(sinks) = &self.sinks {
            a.sinks = sinks.pointer("sinks", heads, device)?;
        }
        if let Some(device) = device {
            self.check_indices_in_device_memory(device, &a)?;
        }
        Ok(a)
    }

    fn index_pointers(&self, device: Option<Device>) -> Result<[*const i32; INDICES.len()]> {
        let mut pointers = [std::ptr::null(); INDICES.len()];
        let batch = i128::from(self.a.batch);
        for (i, array) in self.indices.iter().enumerate() {
            let needed = match i {
                CU_SEQLENS_Q | CU_SEQLENS_K => batch + 1,
                BLOCK_TABLE => {
                    let blocks = i128::from(self.a.seqlen_k).div_ceil_by(i128::from(self.a.page_size.max(1)));
                    (batch - 1).max(0) * i128::from(self.a.block_table_stride) + blocks
                }
                _ => batch,
            };
            if let Some(array) = array {
                pointers[i] = array.pointer(INDICES[i], needed, device)?;
            }
        }
        Ok(pointers)
    }

    /// The library reads indices only in the host's memory. Those in buffers of a GPU are read back here, for a wrong one
    /// would make a kernel read anywhere; [`Array::from_raw`] is without that.
    fn check_indices_in_device_memory(&self, device: Device, a: &sys::fw_attention) -> Result<()> {
        let given = || self.indices.iter().flatten();
        if device.is_cpu() || given().all(|array| array.place == Place::Promised) {
            return Ok(());
        }
        let mut copies: [Vec<i32>; INDICES.len()] = Default::default();
        for (copy, array) in copies.iter_mut().zip(&self.indices) {
            let Some(array) = array else { continue };
            copy.resize(array.len, 0);
            let bytes = array.len * size_of::<i32>();
            let (to, from) = (copy.as_mut_ptr().cast(), array.data.cast());
            let stream = std::ptr::null_mut();
            // SAFETY: as long as the array, which was checked to be the device's.
            check(unsafe { sys::fw_device_copy(device.as_raw(), to, from, bytes, sys::FW_DEVICE_TO_HOST, stream) })?;
        }
        device.synchronize(crate::Stream::DEFAULT)?;
        let mut host = *a;
        let pointer = |i: usize| self.indices[i].map_or(std::ptr::null(), |_| copies[i].as_ptr());
        (host.cu_seqlens_q, host.cu_seqlens_k) = (pointer(CU_SEQLENS_Q), pointer(CU_SEQLENS_K));
        (host.seqused_k, host.leftpad_k) = (pointer(SEQUSED_K), pointer(LEFTPAD_K));
        (host.cache_batch_idx, host.block_table) = (pointer(CACHE_BATCH_IDX), pointer(BLOCK_TABLE));
        // Asking for the cost looks at the indices and at no tensor.
        crate::run::cost_of(Device::cpu(), &host).map(|_| ())
    }
}

pub(crate) fn checked_tensor(
    name: &str,
    tensor: Option<RawTensor>,
    extents: [i64; 4],
    device: Option<Device>,
) -> Result<sys::fw_tensor> {
    let Some(tensor) = tensor else { return Ok(ABSENT) };
    if let Some(device) = device {
        tensor.place.check(name, device)?;
    }
    tensor.view(name, extents)
}

trait DivCeil {
    fn div_ceil_by(self, by: Self) -> Self;
}

impl DivCeil for i128 {
    fn div_ceil_by(self, by: i128) -> i128 {
        (self + by - 1) / by
    }
}
