//! The example's decoder says the same with and without us.
#[path = "../../examples/decoder/model.rs"]
mod model;

use model::{AttentionBy, Config, Decoder};

#[test]
fn says_the_same_tokens() {
    for seed in 1..4 {
        let decoder = Decoder::new(Config::default(), seed).unwrap();
        let prompt: Vec<u32> = (0..50u32).map(|i| (i * i + 7) % 64).collect();
        let plain = decoder.generate(&prompt, 20, AttentionBy::Candle).unwrap();
        assert_eq!(decoder.generate(&prompt, 20, AttentionBy::Flashwave).unwrap(), plain);
        assert!(plain.iter().any(|token| *token != plain[0]), "a decoder that repeats one token shows nothing");
    }
}

/// A token by itself, with the cache, gives what the whole text gives at once.
#[test]
fn continues_from_its_cache() {
    let decoder = Decoder::new(Config::default(), 5).unwrap();
    let text = [3u32, 9, 27, 17, 51];
    for by in [AttentionBy::Candle, AttentionBy::Flashwave] {
        let mut cache = vec![None, None];
        let whole = decoder.step(&text, 0, &mut vec![None, None], by).unwrap();
        decoder.step(&text[..4], 0, &mut cache, by).unwrap();
        let last = decoder.step(&text[4..], 4, &mut cache, by).unwrap();
        assert!(super::plain::largest_difference(&whole, &last) < 1e-4);
    }
}
