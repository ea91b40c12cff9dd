//! Wrong arguments are errors that name them.
use candle_core::{DType, Device, Result, Tensor};
use flashwave::candle::*;

use super::plain::normal;

fn refused(result: Result<Tensor>, words: &[&str]) {
    let message = result.expect_err("an error").to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

fn tensor(shape: &[usize]) -> Tensor {
    normal(shape, DType::F32)
}

#[test]
fn dense() {
    let (q, k) = (tensor(&[1, 6, 4, 8]), tensor(&[1, 9, 2, 8]));
    let call = |q: &Tensor, k: &Tensor, v: &Tensor| flash_attn(q, k, v, 0.3, false);
    let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
    refused(call(&wide(&q), &wide(&k), &wide(&k)), &["q", "f16, bf16 or f32", "F64"]);
    refused(call(&q, &k.to_dtype(DType::BF16).unwrap(), &k), &["k", "dtype of q", "F32", "BF16"]);
    refused(call(&q, &k, &k.to_dtype(DType::F16).unwrap()), &["v", "dtype of q"]);
    refused(call(&tensor(&[6, 4, 8]), &k, &k), &["q", "rank 4"]);
    refused(call(&q, &tensor(&[9, 2, 8]), &k), &["k", "rank 4"]);
    refused(call(&q, &k, &tensor(&[9, 2, 8])), &["v", "rank 4"]);
    refused(call(&q, &tensor(&[1, 9, 3, 8]), &tensor(&[1, 9, 3, 8])), &["heads of k", "3", "q, 4"]);
    refused(call(&q, &tensor(&[1, 9, 2, 16]), &k), &["q", "k", "head dim"]);
    refused(call(&q, &tensor(&[2, 9, 2, 8]), &k), &["q", "k", "batch"]);
    refused(call(&q, &k, &tensor(&[1, 8, 2, 8])), &["k", "v", "all but the head dim"]);
    let turned = |x: &Tensor| x.transpose(2, 3).unwrap().contiguous().unwrap().transpose(2, 3).unwrap();
    refused(call(&turned(&q), &k, &k), &["last dim of q", "contiguous"]);
    refused(call(&q, &turned(&k), &k), &["last dim of k", "contiguous"]);
    refused(call(&q, &k, &turned(&k)), &["last dim of v", "contiguous"]);
    let large = tensor(&[1, 2, 1, 513]);
    refused(call(&large, &large, &large), &["dim_qk", "512"]);
    refused(flash_attn(&q, &k, &k, f32::NAN, false), &["softmax_scale", "finite"]);
    refused(flash_attn_alibi_windowed_softcap(&q, &k, &k, None, 0.3, None, None, -1.), &["softcap"]);
}

#[test]
fn slopes() {
    let (q, k) = (tensor(&[1, 6, 4, 8]), tensor(&[1, 9, 2, 8]));
    let call = |slopes: &Tensor| flash_attn_alibi(&q, &k, &k, slopes, 0.3, false);
    refused(call(&tensor(&[3])), &["alibi_slopes", "(4)", "[3]"]);
    refused(call(&tensor(&[2, 4])), &["alibi_slopes", "(1, 4)"]);
    refused(call(&tensor(&[4]).to_dtype(DType::F16).unwrap()), &["alibi_slopes", "f32", "F16"]);
}

#[test]
fn ragged() {
    let (q, k) = (tensor(&[6, 4, 8]), tensor(&[9, 2, 8]));
    let at = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
    let call = |at_q: &Tensor, at_k: &Tensor, most_q, most_k| {
        flash_attn_varlen(&q, &k, &k, at_q, at_k, most_q, most_k, 0.3, false)
    };
    call(&at(&[0, 2, 6]), &at(&[0, 4, 9]), 4, 5).unwrap();
    refused(call(&at(&[0, 2, 6]), &at(&[0, 9]), 4, 9), &["seqlens_q and seqlens_k", "3 and 2"]);
    refused(call(&at(&[0]), &at(&[0]), 4, 9), &["seqlens_q", "at least 2"]);
    refused(call(&tensor(&[3]), &at(&[0, 4, 9]), 4, 5), &["seqlens_q", "u32 or i32", "F32"]);
    refused(call(&at(&[0, 2, 6]), &at(&[0, 4, 9]), 3, 5), &["cu_seqlens_q"]);
    refused(call(&at(&[0, 2, 7]), &at(&[0, 4, 9]), 5, 5), &["cu_seqlens_q"]);
    refused(call(&at(&[0, 4, 2]), &at(&[0, 4, 9]), 5, 5), &["cu_seqlens_q"]);
    refused(call(&at(&[0, 2, u32::MAX]), &at(&[0, 4, 9]), 5, 5), &["seqlens_q", "4294967295"]);
    refused(
        flash_attn_varlen(&tensor(&[1, 6, 4, 8]), &k, &k, &at(&[0, 6]), &at(&[0, 9]), 6, 9, 0.3, true),
        &["q", "rank 3"],
    );
}

#[test]
fn pages() {
    let (q, pages) = (tensor(&[6, 4, 8]), tensor(&[3, 4, 2, 8]));
    let at = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
    let call = |table: &Tensor, ranges: Option<&Tensor>, k: &Tensor, page| {
        let (at_q, at_k) = (at(&[0, 6]), at(&[0, 7]));
        flash_attn_varlen_paged_windowed(&q, k, k, &at_q, &at_k, table, ranges, 6, 7, 0.3, None, Some(0), page, None)
    };
    let table = Tensor::new(&[[0u32, 2]], &Device::Cpu).unwrap();
    call(&table, None, &pages, 4).unwrap();
    refused(call(&table, None, &pages, 8), &["page_block_size", "8", "4"]);
    refused(call(&table, None, &tensor(&[9, 2, 8]), 4), &["k", "rank 4"]);
    refused(call(&Tensor::new(&[[0u32, 3]], &Device::Cpu).unwrap(), None, &pages, 4), &["block_table"]);
    refused(call(&Tensor::new(&[[0u32]], &Device::Cpu).unwrap(), None, &pages, 4), &["block_table", "2 are needed"]);
    refused(call(&at(&[0, 2]), None, &pages, 4), &["block_table", "(1, blocks)"]);
    refused(call(&table, Some(&tensor(&[1, 1, 2])), &pages, 4), &["mm_prefix_ranges", "i32"]);
    let ranges = Tensor::new(&[[0i32, 2]], &Device::Cpu).unwrap();
    refused(call(&table, Some(&ranges), &pages, 4), &["mm_prefix_ranges", "(1, ranges, 2)"]);
}
