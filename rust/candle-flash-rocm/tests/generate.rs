//! The example that generates text: a checkpoint in the shape of a Llama is written as safetensors, read, and says the same
//! with attention on the CPU, on an AMD GPU (emulated unless `FLASHWAVE_TEST_DEVICE` names one) and by candle's operations.
#[path = "../examples/generate/llama.rs"]
mod llama;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Result, Tensor};
use llama::{composed, Config, Llama};

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0
}"#;

struct Random(u64);

impl Random {
    fn tensor(&mut self, rows: usize, columns: usize, scale: f32) -> Result<Tensor> {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1u32 << 24) as f32
        };
        let mut normal = || ((0..12).map(|_| uniform()).sum::<f32>() - 6.) * scale;
        let data = (0..rows * columns).map(|_| normal()).collect();
        Tensor::from_vec::<_, f32>(data, (rows, columns), &Device::Cpu)?.to_dtype(DType::BF16)
    }
}

/// Weights in bf16, as checkpoints are.
fn checkpoint(folder: &Path, seed: u64) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.json"), CONFIG)?;
    let (width, width_k, hidden, words) = (128, 64, 160, 96);
    let mut random = Random(seed);
    let ones = Tensor::ones(width, DType::BF16, &Device::Cpu)?;
    let mut weights = HashMap::from([
        ("model.embed_tokens.weight".to_string(), random.tensor(words, width, 1.)?),
        ("model.norm.weight".to_string(), ones.clone()),
        ("lm_head.weight".to_string(), random.tensor(words, width, 0.3)?),
    ]);
    for layer in 0..2 {
        let matrices = [
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", width_k, width),
            ("self_attn.v_proj", width_k, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", hidden, width),
            ("mlp.up_proj", hidden, width),
            ("mlp.down_proj", width, hidden),
        ];
        for (name, rows, columns) in matrices {
            let matrix = random.tensor(rows, columns, 1.5 / (columns as f32).sqrt())?;
            weights.insert(format!("model.layers.{layer}.{name}.weight"), matrix);
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            weights.insert(format!("model.layers.{layer}.{name}.weight"), ones.clone());
        }
    }
    candle_core::safetensors::save(&weights, folder.join("model.safetensors"))
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("candle-flash-rocm-{name}-{}", std::process::id()))
}

fn gpu() -> String {
    std::env::var("FLASHWAVE_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942".to_string())
}

const PROMPT: [u32; 11] = [1, 17, 40, 3, 92, 66, 5, 5, 28, 71, 9];

fn attention(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    candle_flash_rocm::flash_attn(q, k, v, scale, true)
}

/// One test: the device is the process's.
#[test]
fn says_the_same_on_every_device() {
    let folder = folder("same");
    checkpoint(&folder, 7).unwrap();
    let model = Llama::load(&folder, DType::F32).unwrap();
    let plain = model.generate(&PROMPT, 8, &composed).unwrap();
    assert!(plain.iter().any(|token| *token != plain[0]), "a model that repeats one token shows nothing");
    for device in ["cpu", &gpu()] {
        candle_flash_rocm::set_device(device).unwrap();
        assert_eq!(model.generate(&PROMPT, 8, &attention).unwrap(), plain, "{device}");
    }
    // In 16 bits the kernels are others; the same text is gone through, and what they expect next compared.
    for dtype in [DType::F16, DType::BF16] {
        let model = Llama::load(&folder, dtype).unwrap();
        let (mut cache, mut plain_cache) = (model.cache(), model.cache());
        let mut position = 0;
        for tokens in [&PROMPT[..], &plain[..1], &plain[1..3]] {
            let logits = model.step(tokens, position, &mut cache, &attention).unwrap();
            let wanted = model.step(tokens, position, &mut plain_cache, &composed).unwrap();
            let largest = |x: &Tensor| x.abs().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
            let (error, size) = (largest(&(&logits - &wanted).unwrap()), largest(&wanted));
            assert!(error < 0.02 * size, "{dtype:?}: {error} of {size}");
            position += tokens.len();
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn says_what_a_folder_lacks() {
    let folder = folder("lacks");
    std::fs::create_dir_all(&folder).unwrap();
    let message = |folder: &Path| Llama::load(folder, DType::F16).err().unwrap().to_string();
    assert!(message(&folder).contains("config.json"), "{}", message(&folder));
    std::fs::write(folder.join("config.json"), CONFIG).unwrap();
    assert!(message(&folder).contains("no .safetensors"), "{}", message(&folder));
    let weights = HashMap::from([("lm_head.weight", Tensor::zeros((96, 128), DType::F32, &Device::Cpu).unwrap())]);
    candle_core::safetensors::save(&weights, folder.join("model.safetensors")).unwrap();
    assert!(message(&folder).contains("model.layers.0.input_layernorm.weight"), "{}", message(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The frequencies of Llama 3.1: fast ones are kept, slow ones eight times slower.
#[test]
fn reads_the_scaling_of_llama_3_1() {
    let folder = folder("scaling");
    std::fs::create_dir_all(&folder).unwrap();
    let config = CONFIG.replace(
        "\"rope_theta\": 10000.0",
        r#""rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#,
    );
    std::fs::write(folder.join("config.json"), config).unwrap();
    let scaled = Config::read(&folder).unwrap().frequencies;
    let plain = |i: usize| 500000f32.powf(-2. * i as f32 / 32.);
    assert_eq!(scaled.len(), 16);
    assert!((scaled[0] - 1.).abs() < 1e-6 && (scaled[4] / plain(4) - 1.).abs() < 1e-5);
    assert!((scaled[15] * 8. / plain(15) - 1.).abs() < 1e-5);
    assert!(scaled[8] < plain(8) && scaled[8] > plain(8) / 8., "between: {} of {}", scaled[8], plain(8));
    std::fs::remove_dir_all(&folder).unwrap();
}
