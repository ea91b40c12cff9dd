//! A Llama as its checkpoints have it: `config.json` and safetensors, with the names that transformers gives them. Computed
//! in f32 by candle on the CPU; attention by whoever is asked to.
use std::collections::HashMap;
use std::path::Path;

use candle_core::{bail, DType, Device, Error, Result, Tensor, D};
use serde_json::Value;

/// Attention of q (1, queries, heads, dim) over k and v (1, keys, heads_k, dim) with a causal mask.
pub type Attention<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>;

#[derive(Clone, Debug)]
pub struct Config {
    pub layers: usize,
    pub heads: usize,
    pub heads_k: usize,
    pub dim: usize,
    pub norm_epsilon: f64,
    pub frequencies: Vec<f32>,
    pub end_of_text: Vec<u32>,
}

impl Config {
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| Error::wrap(error).with_path(&path))?;
        let json: Value = serde_json::from_str(&text).map_err(|error| Error::wrap(error).with_path(&path))?;
        let number = |name: &str| match json[name].as_u64() {
            Some(number) => Ok(number as usize),
            None => bail!("{}: {name} must be a whole number, got {}", path.display(), json[name]),
        };
        let heads = number("num_attention_heads")?;
        if json["attention_bias"] == true || json["mlp_bias"] == true {
            bail!("{}: biases are not read here", path.display())
        }
        let dim = if json["head_dim"].is_u64() { number("head_dim")? } else { number("hidden_size")? / heads };
        let heads_k = if json["num_key_value_heads"].is_u64() { number("num_key_value_heads")? } else { heads };
        let end_of_text = match &json["eos_token_id"] {
            Value::Array(ids) => ids.iter().filter_map(Value::as_u64).map(|id| id as u32).collect(),
            id => id.as_u64().map(|id| id as u32).into_iter().collect(),
        };
        Ok(Config {
            layers: number("num_hidden_layers")?,
            heads,
            heads_k,
            dim,
            norm_epsilon: json["rms_norm_eps"].as_f64().unwrap_or(1e-5),
            frequencies: frequencies(dim, &json),
            end_of_text,
        })
    }
}

/// What a position is multiplied with to turn each pair of a row; Llama 3.1 slows the slowest ones down.
fn frequencies(dim: usize, json: &Value) -> Vec<f32> {
    let base = json["rope_theta"].as_f64().unwrap_or(10000.);
    let scaling = &json["rope_scaling"];
    let of = |name: &str| scaling[name].as_f64().unwrap_or(1.);
    let llama3 = scaling["rope_type"] == "llama3";
    let slowed = |frequency: f64| {
        let turns = of("original_max_position_embeddings") * frequency / std::f64::consts::TAU;
        let (low, high) = (of("low_freq_factor"), of("high_freq_factor"));
        let kept = ((turns - low) / (high - low)).clamp(0., 1.);
        frequency * (kept + (1. - kept) / of("factor"))
    };
    let plain = (0..dim / 2).map(|i| base.powf(-2. * i as f64 / dim as f64));
    plain.map(|frequency| if llama3 { slowed(frequency) } else { frequency } as f32).collect()
}

struct Layer {
    attention_norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    mlp_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Keys and values of the tokens so far, (1, tokens, heads_k, dim), for each layer.
pub type Cache = Vec<Option<(Tensor, Tensor)>>;

pub struct Llama {
    pub config: Config,
    /// In which attention is computed, and keys and values are kept.
    dtype: DType,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
}

fn read_weights(folder: &Path) -> Result<HashMap<String, Tensor>> {
    let mut weights = HashMap::new();
    let entries = std::fs::read_dir(folder).map_err(|error| Error::wrap(error).with_path(folder))?;
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            weights.extend(candle_core::safetensors::load(&path, &Device::Cpu)?);
        }
    }
    if weights.is_empty() {
        bail!("{}: no .safetensors in it", folder.display())
    }
    Ok(weights)
}

impl Llama {
    pub fn load(folder: &Path, dtype: DType) -> Result<Self> {
        let config = Config::read(folder)?;
        let weights = read_weights(folder)?;
        let get = |name: &str| match weights.get(name) {
            Some(weight) => weight.to_dtype(DType::F32),
            None => bail!("{}: there is no {name} in its safetensors", folder.display()),
        };
        let matrix = |name: &str| get(&format!("{name}.weight"))?.t()?.contiguous();
        let layer = |n: usize| {
            let at = |name: &str| format!("model.layers.{n}.{name}");
            Ok(Layer {
                attention_norm: get(&at("input_layernorm.weight"))?,
                query: matrix(&at("self_attn.q_proj"))?,
                key: matrix(&at("self_attn.k_proj"))?,
                value: matrix(&at("self_attn.v_proj"))?,
                output: matrix(&at("self_attn.o_proj"))?,
                mlp_norm: get(&at("post_attention_layernorm.weight"))?,
                gate: matrix(&at("mlp.gate_proj"))?,
                up: matrix(&at("mlp.up_proj"))?,
                down: matrix(&at("mlp.down_proj"))?,
            })
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        let embedding = get("model.embed_tokens.weight")?;
        let tied = !weights.contains_key("lm_head.weight");
        let head = if tied { embedding.t()?.contiguous()? } else { matrix("lm_head")? };
        Ok(Llama { norm: get("model.norm.weight")?, config, dtype, embedding, layers, head })
    }

    pub fn cache(&self) -> Cache {
        (0..self.config.layers).map(|_| None).collect()
    }

    /// Greedily, at most `count` tokens after the prompt; fewer if the model ends its text.
    pub fn generate(&self, prompt: &[u32], count: usize, attention: Attention) -> Result<Vec<u32>> {
        let mut cache = self.cache();
        let mut logits = self.step(prompt, 0, &mut cache, attention)?;
        let mut tokens = Vec::new();
        loop {
            let next = logits.argmax(D::Minus1)?.to_scalar::<u32>()?;
            if tokens.len() == count || self.config.end_of_text.contains(&next) {
                return Ok(tokens);
            }
            tokens.push(next);
            logits = self.step(&[next], prompt.len() + tokens.len() - 1, &mut cache, attention)?;
        }
    }

    /// The logits after the last of `tokens`, of which the first is at `position`.
    pub fn step(&self, tokens: &[u32], position: usize, cache: &mut Cache, attention: Attention) -> Result<Tensor> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for (layer, kept) in self.layers.iter().zip(cache) {
            let attended = self.attend(layer, &self.normed(&x, &layer.attention_norm)?, position, kept, attention)?;
            x = (x + attended)?;
            let y = self.normed(&x, &layer.mlp_norm)?;
            let gate = y.matmul(&layer.gate)?.silu()?;
            x = (x + (gate * y.matmul(&layer.up)?)?.matmul(&layer.down)?)?;
        }
        let last = x.narrow(0, tokens.len() - 1, 1)?;
        self.normed(&last, &self.norm)?.matmul(&self.head)?.squeeze(0)
    }

    fn normed(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean + self.config.norm_epsilon)?.sqrt()?)?.broadcast_mul(weight)
    }

    fn attend(
        &self,
        layer: &Layer,
        x: &Tensor,
        position: usize,
        kept: &mut Option<(Tensor, Tensor)>,
        attention: Attention,
    ) -> Result<Tensor> {
        let Config { heads, heads_k, dim, .. } = self.config;
        let rows = x.dim(0)?;
        let q = self.rotated(&x.matmul(&layer.query)?.reshape((1, rows, heads, dim))?, position)?;
        let k = self.rotated(&x.matmul(&layer.key)?.reshape((1, rows, heads_k, dim))?, position)?;
        let v = x.matmul(&layer.value)?.reshape((1, rows, heads_k, dim))?;
        let (q, mut k, mut v) = (q.to_dtype(self.dtype)?, k.to_dtype(self.dtype)?, v.to_dtype(self.dtype)?);
        if let Some((old_k, old_v)) = kept {
            (k, v) = (Tensor::cat(&[&*old_k, &k], 1)?, Tensor::cat(&[&*old_v, &v], 1)?);
        }
        *kept = Some((k.clone(), v.clone()));
        let o = attention(&q, &k, &v, 1. / (dim as f32).sqrt())?;
        o.to_dtype(DType::F32)?.reshape((rows, heads * dim))?.matmul(&layer.output)
    }

    /// Turns the pairs (i, i + dim/2) of each row by its position.
    fn rotated(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let (_, rows, _, dim) = x.dims4()?;
        let half = dim / 2;
        let angle = |row: usize| self.config.frequencies.iter().map(move |f| (position + row) as f32 * f);
        let angles = Tensor::from_vec((0..rows).flat_map(angle).collect(), (1, rows, 1, half), &Device::Cpu)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let (a, b) = (x.narrow(3, 0, half)?, x.narrow(3, half, half)?);
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        Tensor::cat(&[turned_a, turned_b], 3)
    }
}

/// Causal attention from candle's own operations, in f32.
pub fn composed(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (b, queries, heads, _) = q.dims4()?;
    let (_, keys, heads_k, dim) = k.dims4()?;
    let repeated = |x: &Tensor| {
        x.unsqueeze(3)?.broadcast_as((b, keys, heads_k, heads / heads_k, dim))?.reshape((b, keys, heads, dim))
    };
    let turned = |x: &Tensor| x.transpose(1, 2)?.contiguous()?.to_dtype(DType::F32);
    let (q, k, v) = (turned(q)?, turned(&repeated(k)?)?, turned(&repeated(v)?)?);
    let hidden = |i: usize, j: usize| if j + queries > i + keys { f32::NEG_INFINITY } else { 0. };
    let mask: Vec<f32> = (0..queries).flat_map(|i| (0..keys).map(move |j| hidden(i, j))).collect();
    let mask = Tensor::from_vec(mask, (queries, keys), &Device::Cpu)?;
    let scores = (q.matmul(&k.t()?)? * f64::from(scale))?.broadcast_add(&mask)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&v)?.transpose(1, 2)?.contiguous()
}
