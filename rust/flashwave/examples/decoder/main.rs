//! A small decoder in the manner of Llama, with random weights, generates tokens twice: with attention composed of candle's
//! operations, and with flashwave's. In f32 both say the same.
//!
//! ```text
//! cargo run --release --features candle --example decoder
//! ```
mod model;

use std::time::Instant;

use candle_core::Result;
use model::{AttentionBy, Config, Decoder};

fn main() -> Result<()> {
    let config =
        Config { layers: 4, heads: 8, heads_k: 2, dim: 64, hidden: 1024, vocabulary: 512, ..Config::default() };
    let decoder = Decoder::new(config, 42)?;
    let prompt: Vec<u32> = (0..512u32).map(|i| (i * i + 7) % 512).collect();
    let mut said = Vec::new();
    for by in [AttentionBy::Candle, AttentionBy::Flashwave] {
        let start = Instant::now();
        let tokens = decoder.generate(&prompt, 32, by)?;
        println!("{by:?}: {} ms\n  {tokens:?}", start.elapsed().as_millis());
        said.push(tokens);
    }
    assert_eq!(said[0], said[1], "both must say the same");
    Ok(())
}
