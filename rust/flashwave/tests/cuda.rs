//! candle tensors in NVIDIA memory give what the same tensors give in the host's.
#![cfg(feature = "cuda")]

#[path = "candle/plain.rs"]
mod plain;

use candle_core::{DType, Device, Tensor, Var};
use flashwave::candle::*;
use plain::{attention, check, largest_difference, normal, Options};

fn gpu() -> Device {
    Device::new_cuda(0).expect("the feature cuda is for machines with an NVIDIA GPU")
}

fn on<const N: usize>(device: &Device, tensors: [&Tensor; N]) -> [Tensor; N] {
    tensors.map(|tensor| tensor.to_device(device).unwrap())
}

fn back(tensor: &Tensor) -> Tensor {
    assert!(tensor.device().is_cuda());
    tensor.to_device(&Device::Cpu).unwrap()
}

#[test]
fn dense() {
    let gpu = gpu();
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let (q, k, v) = (normal((2, 37, 4, 64), dtype), normal((2, 61, 2, 64), dtype), normal((2, 61, 2, 64), dtype));
        let [q_there, k_there, v_there, slopes] = on(&gpu, [&q, &k, &v, &slopes]);
        let o = flash_attn(&q_there, &k_there, &v_there, 0.2, true).unwrap();
        check(&back(&o), &q, &k, &v, &Options::causal(0.2));
        let (left, right) = (Some(9), Some(2));
        let o = flash_attn_windowed(&q_there, &k_there, &v_there, 0.2, left, right).unwrap();
        check(&back(&o), &q, &k, &v, &Options { left, right, ..Options::new(0.2) });
        let o = flash_attn_alibi_windowed_softcap(&q_there, &k_there, &v_there, Some(&slopes), 0.2, left, right, 1.5);
        let values = Some(vec![0.5, 0.25, 0.125, 0.0625]);
        let options = Options { left, right, softcap: Some(1.5), slopes: values, ..Options::new(0.2) };
        check(&back(&o.unwrap()), &q, &k, &v, &options);
    }
}

#[test]
fn varlen_and_pages() {
    let gpu = gpu();
    let (q, k, v) =
        (normal((25, 4, 64), DType::BF16), normal((48, 2, 64), DType::BF16), normal((48, 2, 64), DType::BF16));
    let at_q = Tensor::new(&[0u32, 9, 25], &Device::Cpu).unwrap();
    let at_k = Tensor::new(&[0u32, 16, 48], &Device::Cpu).unwrap();
    let table = Tensor::new(&[[0u32, 0], [1, 2]], &Device::Cpu).unwrap();
    let ranges = Tensor::new(&[[[2i32, 14]], [[5, 30]]], &Device::Cpu).unwrap();
    let run = |device: &Device| {
        let [q, k, v, at_q, at_k, table, ranges] = on(device, [&q, &k, &v, &at_q, &at_k, &table, &ranges]);
        let pages = |x: &Tensor| x.reshape((3, 16, 2, 64)).unwrap();
        let (pk, pv) = (pages(&k), pages(&v));
        let paged = |ranges: Option<&Tensor>| {
            flash_attn_varlen_paged_windowed(
                &q,
                &pk,
                &pv,
                &at_q,
                &at_k,
                &table,
                ranges,
                16,
                32,
                0.2,
                None,
                Some(0),
                16,
                None,
            )
            .unwrap()
        };
        let o = flash_attn_varlen(&q, &k, &v, &at_q, &at_k, 16, 32, 0.2, true).unwrap();
        [o, paged(None), paged(Some(&ranges))].map(|o| o.to_device(&Device::Cpu).unwrap())
    };
    let (there, here) = (run(&gpu), run(&Device::Cpu));
    for i in 0..3 {
        assert!(largest_difference(&there[i], &here[i]) < 2e-2);
    }
}

#[test]
fn statistics_and_strides() {
    let gpu = gpu();
    let (q, k) = (normal((1, 4, 20, 64), DType::F32), normal((1, 4, 30, 64), DType::F32));
    let op = FlashAttn {
        softmax_scale: 0.2,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    let run = |device: &Device| {
        let [q, k] = on(device, [&q, &k]).map(|x| x.transpose(1, 2).unwrap());
        let (o, lse) = op.apply_with_lse(&q, &k, &k).unwrap();
        [o, lse].map(|x| x.to_device(&Device::Cpu).unwrap())
    };
    let (there, here) = (run(&gpu), run(&Device::Cpu));
    assert!(largest_difference(&there[0], &here[0]) < 1e-4);
    assert!(largest_difference(&there[1], &here[1]) < 1e-4);
}

#[test]
fn gradients() {
    let gpu = gpu();
    let inputs =
        [normal((1, 19, 4, 64), DType::F32), normal((1, 31, 2, 64), DType::F32), normal((1, 31, 2, 64), DType::F32)];
    let run = |device: &Device, ours: bool| {
        let [q, k, v] = on(device, inputs.each_ref()).map(|x| Var::from_tensor(&x).unwrap());
        let o = if ours {
            flash_attn(&q, &k, &v, 0.2, true).unwrap()
        } else {
            attention(&q, &k, &v, &Options::causal(0.2)).unwrap()
        };
        let store = o.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        [&q, &k, &v].map(|x| store.get(x).unwrap().to_device(&Device::Cpu).unwrap())
    };
    let (ours, theirs) = (run(&gpu, true), run(&Device::Cpu, false));
    for i in 0..3 {
        assert!(largest_difference(&ours[i], &theirs[i]) < 1e-3);
    }
}

#[test]
fn tensors_elsewhere_are_errors() {
    let gpu = gpu();
    let q = normal((1, 8, 2, 64), DType::F32);
    let [q_there] = on(&gpu, [&q]);
    assert!(flash_attn(&q_there, &q, &q, 0.2, true).is_err());
    let slopes = Tensor::new(&[0.5f32, 0.25], &Device::Cpu).unwrap();
    let error = flash_attn_alibi(&q_there, &q_there, &q_there, &slopes, 0.2, true).unwrap_err().to_string();
    assert!(error.contains("alibi_slopes must be a cuda tensor"), "{error}");
}
