//! Text from a Llama checkpoint, with attention on an AMD GPU.
//!
//! ```text
//! cargo run --release --features rocm --example generate -- FOLDER [--prompt TEXT | --tokens 1,2,3] [--count N]
//!     [--device D] [--dtype f16|bf16|f32] [--compare]
//! ```
//!
//! FOLDER is a model as it is downloaded: `config.json`, `*.safetensors`, and for text `tokenizer.json`. D is `hip:0`, the
//! first AMD GPU, unless it is said: `cpu`, `cuda:0`, `emu:gfx942`. `--compare` generates with candle's own operations too.
mod llama;

use std::path::PathBuf;
use std::time::Instant;

use candle_core::{bail, DType, Error, Result};
use llama::{composed, Llama};
use tokenizers::Tokenizer;

struct Arguments {
    folder: PathBuf,
    prompt: String,
    tokens: Option<Vec<u32>>,
    count: usize,
    device: Option<String>,
    dtype: DType,
    compare: bool,
}

fn arguments() -> Result<Arguments> {
    let (mut folder, mut tokens, mut device) = (None, None, None);
    let (mut prompt, mut count, mut dtype, mut compare) = ("Once upon a time".to_string(), 32, DType::F16, false);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| Error::Msg(format!("{argument} needs a value")));
        match argument.as_str() {
            "--compare" => compare = true,
            "--prompt" => prompt = value()?,
            "--device" => device = Some(value()?),
            "--count" => count = value()?.parse().map_err(Error::wrap)?,
            "--tokens" => {
                let numbers =
                    value()?.split(',').map(|word| word.trim().parse()).collect::<std::result::Result<_, _>>();
                tokens = Some(numbers.map_err(Error::wrap)?);
            }
            "--dtype" => {
                dtype = match value()?.as_str() {
                    "f16" => DType::F16,
                    "bf16" => DType::BF16,
                    "f32" => DType::F32,
                    other => bail!("--dtype takes f16, bf16 or f32, got {other}"),
                }
            }
            option if option.starts_with("--") => bail!("unknown option {option}"),
            path => folder = Some(PathBuf::from(path)),
        }
    }
    let Some(folder) = folder else { bail!("a folder with config.json and *.safetensors is needed") };
    Ok(Arguments { folder, prompt, tokens, count, device, dtype, compare })
}

fn main() -> Result<()> {
    let Arguments { folder, prompt, tokens, count, device, dtype, compare } = arguments()?;
    if let Some(name) = device {
        candle_flash_rocm::set_device(&name)?;
    }
    let file = folder.join("tokenizer.json");
    let tokenizer = match &tokens {
        None => Some(Tokenizer::from_file(&file).map_err(|error| Error::Msg(format!("{}: {error}", file.display())))?),
        Some(_) => None,
    };
    let tokens = match (tokens, &tokenizer) {
        (Some(tokens), _) => tokens,
        (None, Some(tokenizer)) => tokenizer.encode(prompt.as_str(), true).map_err(Error::wrap)?.get_ids().to_vec(),
        (None, None) => unreachable!("one of the two"),
    };
    let model = Llama::load(&folder, dtype)?;
    let show = |new: &[u32]| match &tokenizer {
        Some(tokenizer) => tokenizer.decode(&[&tokens[..], new].concat(), true).map_err(Error::wrap),
        None => Ok(format!("{new:?}")),
    };
    let start = Instant::now();
    let attention = |q: &_, k: &_, v: &_, scale| candle_flash_rocm::flash_attn(q, k, v, scale, true);
    let new = model.generate(&tokens, count, &attention)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{}", show(&new)?);
    eprintln!("{} tokens in {seconds:.2} s, attention on {}", new.len(), candle_flash_rocm::device()?.info().name);
    if compare {
        let plain = model.generate(&tokens, count, &composed)?;
        println!("{}", show(&plain)?);
        eprintln!("candle's own operations say {}", if plain == new { "the same" } else { "something else" });
    }
    Ok(())
}
