//! The decoder: embedding, layers of grouped-query attention with rotary embedding and a KV cache, gated MLPs, RMS norms.
use candle_core::{Device, Result, Tensor, D};

#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub layers: usize,
    pub heads: usize,
    pub heads_k: usize,
    pub dim: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    pub rotary_base: f32,
}

impl Default for Config {
    fn default() -> Self {
        Config { layers: 2, heads: 4, heads_k: 2, dim: 16, hidden: 96, vocabulary: 64, rotary_base: 10000. }
    }
}

/// Who computes the attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBy {
    Candle,
    Flashwave,
}

struct Layer {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Keys and values of the tokens so far, (1, tokens, heads_k, dim), for each layer.
type Cache = Vec<Option<(Tensor, Tensor)>>;

pub struct Decoder {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    head: Tensor,
}

/// Numbers like N(0, 1), the same for every run.
struct Random(u64);

impl Random {
    fn matrix(&mut self, rows: usize, columns: usize) -> Result<Tensor> {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1u32 << 24) as f32
        };
        let mut normal = || (0..12).map(|_| uniform()).sum::<f32>() - 6.;
        let data = (0..rows * columns).map(|_| normal() / (rows as f32).sqrt()).collect();
        Tensor::from_vec::<_, f32>(data, (rows, columns), &Device::Cpu)
    }
}

fn norm(x: &Tensor) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean + 1e-6)?.sqrt()?)
}

fn silu(x: &Tensor) -> Result<Tensor> {
    x / (x.neg()?.exp()? + 1.)?
}

impl Decoder {
    pub fn new(config: Config, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let width = config.heads * config.dim;
        let width_k = config.heads_k * config.dim;
        let embedding = (random.matrix(config.vocabulary, width)? * (config.vocabulary as f64).sqrt())?;
        let mut layer = || {
            Ok(Layer {
                query: random.matrix(width, width)?,
                key: random.matrix(width, width_k)?,
                value: random.matrix(width, width_k)?,
                output: random.matrix(width, width)?,
                gate: random.matrix(width, config.hidden)?,
                up: random.matrix(width, config.hidden)?,
                down: random.matrix(config.hidden, width)?,
            })
        };
        let layers = (0..config.layers).map(|_| layer()).collect::<Result<_>>()?;
        let head = random.matrix(width, config.vocabulary)?;
        Ok(Decoder { config, embedding, layers, head })
    }

    /// Greedily, `count` tokens after the prompt.
    pub fn generate(&self, prompt: &[u32], count: usize, by: AttentionBy) -> Result<Vec<u32>> {
        let mut cache: Cache = (0..self.config.layers).map(|_| None).collect();
        let mut logits = self.step(prompt, 0, &mut cache, by)?;
        let mut tokens = Vec::new();
        while tokens.len() < count {
            let next = logits.argmax(D::Minus1)?.to_scalar::<u32>()?;
            tokens.push(next);
            logits = self.step(&[next], prompt.len() + tokens.len() - 1, &mut cache, by)?;
        }
        Ok(tokens)
    }

    /// The logits after the last of `tokens`, of which the first is at `position`.
    pub fn step(&self, tokens: &[u32], position: usize, cache: &mut Cache, by: AttentionBy) -> Result<Tensor> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for (layer, kept) in self.layers.iter().zip(cache) {
            x = (&x + self.attend(layer, &norm(&x)?, position, kept, by)?)?;
            let y = norm(&x)?;
            let inner = (silu(&y.matmul(&layer.gate)?)? * y.matmul(&layer.up)?)?;
            x = (x + inner.matmul(&layer.down)?)?;
        }
        let last = x.narrow(0, tokens.len() - 1, 1)?;
        norm(&last)?.matmul(&self.head)?.squeeze(0)
    }

    fn attend(
        &self,
        layer: &Layer,
        x: &Tensor,
        position: usize,
        kept: &mut Option<(Tensor, Tensor)>,
        by: AttentionBy,
    ) -> Result<Tensor> {
        let Config { heads, heads_k, dim, .. } = self.config;
        let rows = x.dim(0)?;
        let q = self.rotate(&x.matmul(&layer.query)?.reshape((1, rows, heads, dim))?, position)?;
        let mut k = self.rotate(&x.matmul(&layer.key)?.reshape((1, rows, heads_k, dim))?, position)?;
        let mut v = x.matmul(&layer.value)?.reshape((1, rows, heads_k, dim))?;
        if let Some((old_k, old_v)) = kept {
            (k, v) = (Tensor::cat(&[&*old_k, &k], 1)?, Tensor::cat(&[&*old_v, &v], 1)?);
        }
        *kept = Some((k.clone(), v.clone()));
        let scale = 1. / (dim as f32).sqrt();
        let o = match by {
            AttentionBy::Flashwave => flashwave::candle::flash_attn(&q, &k, &v, scale, true)?,
            AttentionBy::Candle => composed(&q, &k, &v, scale)?,
        };
        o.reshape((rows, heads * dim))?.matmul(&layer.output)
    }

    /// Turns the pairs (i, i + dim/2) of each row by its position.
    fn rotate(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let (_, rows, _, dim) = x.dims4()?;
        let half = dim / 2;
        let angle =
            |row: usize, i: usize| (position + row) as f32 * self.config.rotary_base.powf(-2. * i as f32 / dim as f32);
        let angles: Vec<f32> = (0..rows).flat_map(|row| (0..half).map(move |i| angle(row, i))).collect();
        let angles = Tensor::from_vec(angles, (1, rows, 1, half), &Device::Cpu)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let (a, b) = (x.narrow(3, 0, half)?, x.narrow(3, half, half)?);
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        Tensor::cat(&[turned_a, turned_b], 3)
    }
}

/// Causal attention from candle's own operations.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (b, queries, heads, _) = q.dims4()?;
    let (_, keys, heads_k, dim) = k.dims4()?;
    let repeated = |x: &Tensor| {
        x.unsqueeze(3)?.broadcast_as((b, keys, heads_k, heads / heads_k, dim))?.reshape((b, keys, heads, dim))
    };
    let turned = |x: &Tensor| x.transpose(1, 2)?.contiguous();
    let (q, k, v) = (turned(q)?, turned(&repeated(k)?)?, turned(&repeated(v)?)?);
    let hidden = |i: usize, j: usize| if j + queries > i + keys { f32::NEG_INFINITY } else { 0. };
    let mask: Vec<f32> = (0..queries).flat_map(|i| (0..keys).map(move |j| hidden(i, j))).collect();
    let mask = Tensor::from_vec(mask, (queries, keys), &Device::Cpu)?;
    let scores = (q.matmul(&k.t()?)? * f64::from(scale))?.broadcast_add(&mask)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&v)?.transpose(1, 2)?.contiguous()
}
