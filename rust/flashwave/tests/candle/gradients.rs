//! Gradients against candle's own autograd through the composed attention.
use candle_core::{DType, Device, Tensor, Var};
use flashwave::candle::*;

use super::plain::{assert_judged, attention, largest_difference, normal, Options};

type Attention<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> candle_core::Result<Tensor>;

/// The gradients of Σ o·w in q, k and v.
fn gradients(function: Attention<'_>, inputs: [&Tensor; 3], weights: &Tensor) -> [Tensor; 3] {
    let [q, k, v] = inputs.map(|x| Var::from_tensor(x).unwrap());
    let o = function(&q, &k, &v).unwrap();
    let loss = (o * weights).unwrap().sum_all().unwrap();
    let store = loss.backward().unwrap();
    [&q, &k, &v].map(|x| store.get(x).unwrap().clone())
}

fn check(ours: Attention<'_>, inputs: [&Tensor; 3], weights: &Tensor, options: &Options) {
    let composed = |q: &Tensor, k: &Tensor, v: &Tensor| attention(q, k, v, options);
    let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
    let exact = gradients(&composed, inputs.map(wide).each_ref(), &wide(weights));
    let theirs = gradients(&composed, inputs, weights);
    let ours = gradients(ours, inputs, weights);
    for i in 0..3 {
        assert_eq!(ours[i].dims(), inputs[i].dims());
        assert_judged(&ours[i], &theirs[i], &exact[i], 3.);
    }
}

#[test]
fn dense() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let inputs = [normal((2, 19, 4, 32), dtype), normal((2, 31, 2, 32), dtype), normal((2, 31, 2, 24), dtype)];
        let weights = normal((2, 19, 4, 24), dtype);
        let inputs = inputs.each_ref();
        check(&|q, k, v| flash_attn(q, k, v, 0.2, false), inputs, &weights, &Options::new(0.2));
        check(&|q, k, v| flash_attn(q, k, v, 0.2, true), inputs, &weights, &Options::causal(0.2));
        let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap();
        let ours = |q: &Tensor, k: &Tensor, v: &Tensor| {
            flash_attn_alibi_windowed_softcap(q, k, v, Some(&slopes), 0.2, Some(6), Some(2), 1.5)
        };
        let values = Some(vec![0.5, 0.25, 0.125, 0.0625]);
        let options =
            Options { left: Some(6), right: Some(2), softcap: Some(1.5), slopes: values, ..Options::new(0.2) };
        check(&ours, inputs, &weights, &options);
    }
}

/// What the graph sees as (b, s, h, d) is a transposition of the variables, and so are their gradients.
#[test]
fn through_transpositions() {
    let inputs =
        [normal((1, 4, 19, 32), DType::F32), normal((1, 2, 31, 32), DType::F32), normal((1, 2, 31, 32), DType::F32)];
    let weights = normal((1, 19, 4, 32), DType::F32);
    let turned = |x: &Tensor| x.transpose(1, 2);
    let ours = |q: &Tensor, k: &Tensor, v: &Tensor| flash_attn(&turned(q)?, &turned(k)?, &turned(v)?, 0.2, true);
    let composed =
        |q: &Tensor, k: &Tensor, v: &Tensor| attention(&turned(q)?, &turned(k)?, &turned(v)?, &Options::causal(0.2));
    let ours = gradients(&ours, inputs.each_ref(), &weights);
    let theirs = gradients(&composed, inputs.each_ref(), &weights);
    for i in 0..3 {
        assert!(largest_difference(&ours[i], &theirs[i]) < 1e-4);
    }
}

/// An operation that candle applies itself repeats the forward; the result is the same, to the bit.
#[test]
fn of_an_operation() {
    let inputs =
        [normal((1, 19, 4, 32), DType::F32), normal((1, 31, 2, 32), DType::F32), normal((1, 31, 2, 32), DType::F32)];
    let weights = normal((1, 19, 4, 32), DType::F32);
    let op = FlashAttn {
        softmax_scale: 0.2,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    let one = gradients(&|q, k, v| op.apply(q, k, v), inputs.each_ref(), &weights);
    let other = gradients(&|q, k, v| q.apply_op3(k, v, op.clone()), inputs.each_ref(), &weights);
    let with_lse = gradients(&|q, k, v| Ok(op.apply_with_lse(q, k, v)?.0), inputs.each_ref(), &weights);
    for i in 0..3 {
        assert_eq!(largest_difference(&one[i], &other[i]), 0.);
        assert_eq!(largest_difference(&one[i], &with_lse[i]), 0.);
    }
}

#[test]
fn varlen() {
    let at = [0u32, 7, 19];
    let seqlens = Tensor::new(&at, &Device::Cpu).unwrap();
    let inputs = [normal((19, 4, 16), DType::F32), normal((19, 2, 16), DType::F32), normal((19, 2, 16), DType::F32)];
    let weights = normal((19, 4, 16), DType::F32);
    let ours = |q: &Tensor, k: &Tensor, v: &Tensor| flash_attn_varlen(q, k, v, &seqlens, &seqlens, 12, 12, 0.25, true);
    let composed = |q: &Tensor, k: &Tensor, v: &Tensor| {
        let one = |from: u32, to: u32| {
            let part = |x: &Tensor| x.narrow(0, from as usize, (to - from) as usize)?.unsqueeze(0);
            attention(&part(q)?, &part(k)?, &part(v)?, &Options::causal(0.25))?.squeeze(0)
        };
        Tensor::cat(&[one(at[0], at[1])?, one(at[1], at[2])?], 0)
    };
    let ours = gradients(&ours, inputs.each_ref(), &weights);
    let theirs = gradients(&composed, inputs.each_ref(), &weights);
    for i in 0..3 {
        assert!(largest_difference(&ours[i], &theirs[i]) < 1e-4);
    }
}

/// One variable in all three places: its gradients add up.
#[test]
fn of_self_attention() {
    let x = normal((1, 12, 2, 16), DType::F32);
    let one = |function: Attention<'_>| {
        let x = Var::from_tensor(&x).unwrap();
        let loss = function(&x, &x, &x).unwrap().sqr().unwrap().sum_all().unwrap();
        loss.backward().unwrap().get(&x).unwrap().clone()
    };
    let ours = one(&|q, k, v| flash_attn(q, k, v, 0.25, true));
    let theirs = one(&|q, k, v| attention(q, k, v, &Options::causal(0.25)));
    assert!(largest_difference(&ours, &theirs) < 1e-4);
}

#[test]
fn that_do_not_exist_are_errors() {
    let q = Var::from_tensor(&normal((1, 4, 2, 8), DType::F32)).unwrap();
    let slopes = Var::from_tensor(&Tensor::new(&[0.5f32, 0.25], &Device::Cpu).unwrap()).unwrap();
    let o = flash_attn_alibi(&q, &q, &q, &slopes, 0.3, true).unwrap();
    let error = o.sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("alibi_slopes"), "{error}");
    let pages = Var::from_tensor(&normal((1, 4, 2, 8), DType::F32)).unwrap();
    let (q, at) = (q.squeeze(0).unwrap(), Tensor::new(&[0u32, 4], &Device::Cpu).unwrap());
    let table = Tensor::new(&[[0u32]], &Device::Cpu).unwrap();
    let o =
        flash_attn_varlen_paged_windowed(&q, &pages, &pages, &at, &at, &table, None, 4, 4, 0.3, None, None, 4, None);
    let error = o.unwrap().sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("block_table cannot be used in a backward"), "{error}");
}
