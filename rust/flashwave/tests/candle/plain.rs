//! Attention from matmul and softmax, with the whole matrix in memory, and the rule that results are judged by.
#![allow(dead_code)] // each of the programs that include this file uses a part of it
use candle_core::{DType, Device, Result, Tensor, D};

#[derive(Clone, Debug)]
pub struct Options {
    pub scale: f64,
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub softcap: Option<f64>,
    pub slopes: Option<Vec<f64>>,
    pub ranges: Vec<(usize, usize)>,
}

impl Options {
    pub fn new(scale: f64) -> Self {
        Options { scale, left: None, right: None, softcap: None, slopes: None, ranges: Vec::new() }
    }

    pub fn causal(scale: f64) -> Self {
        Options { right: Some(0), ..Options::new(scale) }
    }

    /// (heads, queries, keys): 1 where a query sees a key; and what is added to the scores.
    fn mask(&self, heads: usize, queries: usize, keys: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
        let (mut visible, mut added) = (Vec::new(), Vec::new());
        for h in 0..heads {
            for i in 0..queries {
                for j in 0..keys {
                    let distance = j as i64 - (i + keys) as i64 + queries as i64;
                    let near = self.left.is_none_or(|left| -distance <= left as i64)
                        && self.right.is_none_or(|right| distance <= right as i64);
                    let position = (i + keys) as i64 - queries as i64;
                    let together = self.ranges.iter().any(|&(start, end)| {
                        let inside = |at: i64| at >= start as i64 && at < end as i64;
                        inside(position) && inside(j as i64)
                    });
                    visible.push(if near || together { 1f64 } else { 0. });
                    added.push(self.slopes.as_ref().map_or(0., |slopes| -slopes[h] * distance.abs() as f64));
                }
            }
        }
        let tensor = |data: Vec<f64>| Tensor::from_vec(data, (heads, queries, keys), &Device::Cpu)?.to_dtype(dtype);
        Ok((tensor(visible)?, tensor(added)?))
    }
}

/// q (b, s, h, d), k and v (b, s, h_k, d), in the dtype of q all the way.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<Tensor> {
    let (_, queries, heads, _) = q.dims4()?;
    let (_, keys, heads_k, _) = k.dims4()?;
    let repeated = |x: &Tensor| -> Result<Tensor> {
        let (b, s, h, d) = x.dims4()?;
        x.unsqueeze(3)?.broadcast_as((b, s, h, heads / heads_k, d))?.reshape((b, s, heads, d))
    };
    let turned = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let (q, k, v) = (turned(q)?, turned(&repeated(k)?)?, turned(&repeated(v)?)?);
    let mut scores = (q.matmul(&k.t()?)? * options.scale)?;
    if let Some(cap) = options.softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    let (visible, added) = options.mask(heads, queries, keys, q.dtype())?;
    // -1e4 is hidden enough in every dtype; the weights of hidden keys then become 0 exactly.
    let hidden = ((visible.clone() - 1.)? * 1e4)?;
    scores = scores.broadcast_add(&added)?.broadcast_add(&hidden)?;
    let top = scores.max_keepdim(D::Minus1)?.detach();
    let weights = scores.broadcast_sub(&top)?.exp()?.broadcast_mul(&visible)?;
    let sees_nothing = (1. - visible.max_keepdim(D::Minus1)?)?; // 0 / 1 there
    let sum = weights.sum_keepdim(D::Minus1)?.broadcast_add(&sees_nothing)?;
    weights.matmul(&v)?.broadcast_div(&sum)?.transpose(1, 2)?.contiguous()
}

pub fn largest_difference(x: &Tensor, y: &Tensor) -> f64 {
    assert_eq!(x.dims(), y.dims());
    let (x, y) = (x.to_dtype(DType::F64).unwrap(), y.to_dtype(DType::F64).unwrap());
    let difference = (x - y).unwrap().abs().unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert!(difference.iter().all(|x| x.is_finite()), "not a finite number");
    difference.into_iter().fold(0., f64::max)
}

/// At most `times` the error that candle's own operations make in that precision.
pub fn assert_judged(got: &Tensor, composed: &Tensor, exact: &Tensor, times: f64) {
    let (ours, theirs) = (largest_difference(got, exact), largest_difference(composed, exact));
    assert!(ours <= times * theirs + 2e-6, "error {ours:e}, candle's own is {theirs:e}");
}

/// N(0, 1), the same numbers in every run: candle's generator for the CPU takes no seed.
pub fn normal(shape: impl Into<candle_core::Shape>, dtype: DType) -> Tensor {
    thread_local!(static STATE: std::cell::Cell<u64> = const { std::cell::Cell::new(0x9E37_79B9_7F4A_7C15) });
    let uniform = || {
        let mut state = STATE.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        STATE.set(state);
        ((state >> 11) + 1) as f64 / (1u64 << 53) as f64
    };
    let shape = shape.into();
    let one = || ((-2. * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32;
    let data: Vec<f32> = (0..shape.elem_count()).map(|_| one()).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// `got` for q, k, v against [`attention`] in f64.
pub fn check(got: &Tensor, q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) {
    assert_eq!(got.dtype(), q.dtype());
    let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
    let exact = attention(&wide(q), &wide(k), &wide(v), options).unwrap();
    let composed = attention(q, k, v, options).unwrap();
    assert_judged(got, &composed, &exact, 2.);
}
