//! CPU tensors on a GPU, against attention composed of candle's operations. `FLASHWAVE_TEST_DEVICE` names it (`hip:0`,
//! `cuda:0`); without, the AMD kernels are executed on an instruction-level emulator.
#[path = "../../flashwave/tests/candle/plain.rs"]
mod plain;

use candle_core::{DType, Device, Tensor, Var};
use candle_flash_rocm::*;
use plain::{check, largest_difference, normal, Options};

fn choose_gpu() {
    let name = std::env::var("FLASHWAVE_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942".to_string());
    set_device(&name).unwrap();
    assert_eq!(device().unwrap().info().name, name);
}

fn slopes() -> (Tensor, Option<Vec<f64>>) {
    (Tensor::new(&[0.5f32, 0.25], &Device::Cpu).unwrap(), Some(vec![0.5, 0.25]))
}

#[test]
fn dense() {
    choose_gpu();
    let (slopes, values) = slopes();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let (q, k, v) = (normal((1, 20, 2, 32), dtype), normal((1, 35, 1, 32), dtype), normal((1, 35, 1, 32), dtype));
        let (left, right) = (Some(7), Some(2));
        let windowed = Options { left, right, ..Options::new(0.2) };
        check(&flash_attn(&q, &k, &v, 0.2, false).unwrap(), &q, &k, &v, &Options::new(0.2));
        check(&flash_attn(&q, &k, &v, 0.2, true).unwrap(), &q, &k, &v, &Options::causal(0.2));
        check(&flash_attn_windowed(&q, &k, &v, 0.2, left, right).unwrap(), &q, &k, &v, &windowed);
        let o = flash_attn_alibi(&q, &k, &v, &slopes, 0.2, true).unwrap();
        check(&o, &q, &k, &v, &Options { slopes: values.clone(), ..Options::causal(0.2) });
        let o = flash_attn_alibi_windowed(&q, &k, &v, &slopes, 0.2, left, right).unwrap();
        check(&o, &q, &k, &v, &Options { slopes: values.clone(), ..windowed.clone() });
        let o = flash_attn_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), 0.2, left, right, 2.).unwrap();
        check(&o, &q, &k, &v, &Options { slopes: values.clone(), softcap: Some(2.), ..windowed.clone() });
    }
}

#[test]
fn strided() {
    choose_gpu();
    let q = normal((2, 2, 20, 64), DType::BF16).transpose(1, 2).unwrap();
    let packed = normal((2, 20, 2, 2, 64), DType::BF16);
    let (k, v) =
        (packed.narrow(2, 0, 1).unwrap().squeeze(2).unwrap(), packed.narrow(2, 1, 1).unwrap().squeeze(2).unwrap());
    check(&flash_attn(&q, &k, &v, 0.125, true).unwrap(), &q, &k, &v, &Options::causal(0.125));
}

#[test]
fn varlen() {
    choose_gpu();
    let (slopes, values) = slopes();
    let dtype = DType::F16;
    let (q, k, v) = (normal((25, 2, 32), dtype), normal((30, 1, 32), dtype), normal((30, 1, 32), dtype));
    let (at_q, at_k) = ([0u32, 9, 25], [0u32, 10, 30]);
    let (seqlens_q, seqlens_k) = (Tensor::new(&at_q, &Device::Cpu).unwrap(), Tensor::new(&at_k, &Device::Cpu).unwrap());
    let (left, right) = (Some(5), Some(1));
    let checked = |o: Tensor, options: Options| {
        for b in 0..2 {
            let part = |x: &Tensor, at: &[u32; 3]| {
                x.narrow(0, at[b] as usize, (at[b + 1] - at[b]) as usize).unwrap().unsqueeze(0).unwrap()
            };
            check(&part(&o, &at_q), &part(&q, &at_q), &part(&k, &at_k), &part(&v, &at_k), &options);
        }
    };
    let (sq, sk) = (&seqlens_q, &seqlens_k);
    let windowed = Options { left, right, ..Options::new(0.2) };
    let sloped = |options: Options| Options { slopes: values.clone(), ..options };
    checked(flash_attn_varlen(&q, &k, &v, sq, sk, 16, 20, 0.2, true).unwrap(), Options::causal(0.2));
    checked(flash_attn_varlen_windowed(&q, &k, &v, sq, sk, 16, 20, 0.2, left, right).unwrap(), windowed.clone());
    let o = flash_attn_varlen_alibi(&q, &k, &v, &slopes, sq, sk, 16, 20, 0.2, true).unwrap();
    checked(o, sloped(Options::causal(0.2)));
    let o = flash_attn_varlen_alibi_windowed(&q, &k, &v, &slopes, sq, sk, 16, 20, 0.2, left, right).unwrap();
    checked(o, sloped(windowed.clone()));
    let o = flash_attn_varlen_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), sq, sk, 16, 20, 0.2, left, right, 2.);
    checked(o.unwrap(), sloped(Options { softcap: Some(2.), ..windowed.clone() }));

    // The same keys in pages of 10 rows: sequence 0 has page 1, sequence 1 pages 2 and 0.
    let pages = |x: &Tensor| Tensor::cat(&[&x.narrow(0, 20, 10).unwrap(), &x.narrow(0, 0, 20).unwrap()], 0).unwrap();
    let pages = |x: &Tensor| pages(x).reshape((3, 10, 1, 32)).unwrap();
    let table = Tensor::new(&[[1u32, 99], [2, 0]], &Device::Cpu).unwrap();
    let (pk, pv) = (pages(&k), pages(&v));
    let o = flash_attn_varlen_paged_windowed(&q, &pk, &pv, sq, sk, &table, None, 16, 20, 0.2, left, right, 10, None);
    checked(o.unwrap(), windowed);
    let wrong = Tensor::new(&[[1u32, 0], [2, 3]], &Device::Cpu).unwrap();
    let error =
        flash_attn_varlen_paged_windowed(&q, &pk, &pv, sq, sk, &wrong, None, 16, 20, 0.2, left, right, 10, None);
    assert!(error.unwrap_err().to_string().contains("block_table"));
}

#[test]
fn gradients() {
    choose_gpu();
    let x = normal((1, 12, 2, 32), DType::F32);
    let gradient = |staged: bool| {
        let x = Var::from_tensor(&x).unwrap();
        let o = if staged {
            flash_attn(&x, &x, &x, 0.2, true).unwrap()
        } else {
            plain::attention(&x, &x, &x, &Options::causal(0.2)).unwrap()
        };
        o.sqr().unwrap().sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone()
    };
    assert!(largest_difference(&gradient(true), &gradient(false)) < 1e-4);
}

/// The operation by hand, under the name that candle's messages have.
#[test]
fn the_operation_is_called_flash_attn_rocm() {
    choose_gpu();
    let op = |slopes| FlashAttn {
        softmax_scale: 0.2,
        alibi_slopes: slopes,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    use candle_core::CustomOp3;
    assert_eq!(op(None).name(), "flash-attn-rocm");
    let q = normal((1, 12, 2, 32), DType::F16);
    check(&q.apply_op3(&q, &q, op(None)).unwrap(), &q, &q, &q, &Options::causal(0.2));
    let (slopes, values) = slopes();
    let wanted = Options { slopes: values, ..Options::causal(0.2) };
    check(&q.apply_op3(&q, &q, op(Some(slopes))).unwrap(), &q, &q, &q, &wanted);

    let x = normal((1, 12, 2, 32), DType::F32);
    let gradient = |by_hand: bool| {
        let x = Var::from_tensor(&x).unwrap();
        let o =
            if by_hand { x.apply_op3(&x, &x, op(None)).unwrap() } else { flash_attn(&x, &x, &x, 0.2, true).unwrap() };
        o.sqr().unwrap().sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone()
    };
    assert_eq!(largest_difference(&gradient(true), &gradient(false)), 0.);
}
