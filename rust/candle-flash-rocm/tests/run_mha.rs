//! Both forms of `run_mha_rocm` as a candle with AMD tensors calls them: device memory of the HIP driver, here that of an emulated gfx942.
#[path = "../../flashwave/tests/candle/plain.rs"]
mod plain;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use candle_core::{DType, Tensor};
use candle_flash_rocm::{run_mha_rocm, run_mha_rocm_0_11};
use flashwave::{sys, Device, DeviceBuffer, Element};
use half::{bf16, f16};
use plain::{check, normal, Options};

/// One call; what is 0, false or `None` is absent.
#[derive(Clone, Default)]
struct Call {
    batch: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    heads: usize,
    heads_k: usize,
    dim: usize,
    causal: bool,
    window: Option<(i32, i32)>,
    slopes: Option<Vec<f32>>,
    softcap: f32,
    /// First rows of the sequences in q and k.
    ragged: Option<(Vec<i32>, Vec<i32>)>,
}

fn gpu() -> Device {
    static CHOSEN: std::sync::Once = std::sync::Once::new();
    CHOSEN.call_once(|| std::env::set_var("FLASHWAVE_CANDLE_DEVICE", "emu:gfx942"));
    Device::open("emu:gfx942").unwrap()
}

fn address<T: flashwave::Plain>(buffer: &Option<DeviceBuffer<T>>) -> *const T {
    buffer.as_ref().map_or(null(), |buffer| buffer.as_ptr().cast_const().cast())
}

/// The output and the statistics, and what was given.
fn run<T: Element + candle_core::WithDType>(call: &Call, inputs: [&Tensor; 3]) -> Result<(Vec<T>, Vec<f32>), String> {
    let gpu = gpu();
    let upload = |x: &Tensor| gpu.upload(&x.flatten_all().unwrap().to_vec1::<T>().unwrap()).unwrap();
    let [q, k, v] = inputs.map(upload);
    let rows_q = inputs[0].elem_count() / (call.heads * call.dim);
    let o = gpu.zeros::<T>(inputs[0].elem_count()).unwrap();
    let lse = gpu.zeros::<f32>(rows_q * call.heads).unwrap();
    let slopes = call.slopes.as_ref().map(|slopes| gpu.upload(slopes).unwrap());
    let at_q = call.ragged.as_ref().map(|(q, _)| gpu.upload(q).unwrap());
    let at_k = call.ragged.as_ref().map(|(_, k)| gpu.upload(k).unwrap());
    let ragged = call.ragged.is_some();
    let row = |heads: usize| (heads * call.dim) as u32;
    let batch = |heads: usize, rows: usize| if ragged { 0 } else { row(heads) * rows as u32 };
    let (q_row, k_row, d) = (row(call.heads), row(call.heads_k), call.dim as u32);
    let (q_batch, k_batch) = (batch(call.heads, call.seqlen_q), batch(call.heads_k, call.seqlen_k));
    // As candle does: a causal mask is a window without a limit on the left.
    let (left, right) = call.window.unwrap_or(if call.causal { (call.seqlen_k as i32, 0) } else { (-1, -1) });
    let round = |x: usize, to: usize| (x.div_ceil(to) * to) as u32;
    let status = unsafe {
        run_mha_rocm_0_11(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            o.as_ptr(),
            lse.as_ptr(),
            address(&slopes).cast::<c_void>(),
            address(&at_q),
            address(&at_k),
            q_batch,
            k_batch,
            k_batch,
            q_batch,
            0,
            q_row,
            k_row,
            k_row,
            q_row,
            d,
            d,
            d,
            d,
            call.batch as u32,
            call.heads as u32,
            call.heads_k as u32,
            d,
            round(call.dim, 32),
            0.2,
            call.seqlen_q as u32,
            call.seqlen_k as u32,
            round(call.seqlen_q, 128),
            round(call.seqlen_k, 128),
            rows_q as u32,
            i32::from(<T as Element>::DTYPE == flashwave::DType::BF16),
            i32::from(call.causal),
            i32::from(ragged),
            left,
            right,
            call.softcap,
            null(),
            0,
            -1,
            null(),
            0,
            0,
            null_mut(),
        )
    };
    if status != sys::FW_OK {
        return Err(unsafe { std::ffi::CStr::from_ptr(sys::fw_last_error()) }.to_string_lossy().into_owned());
    }
    let long = (o.to_vec().unwrap(), lse.to_vec().unwrap());
    // The form without a status and pages: the same bits.
    let (o, lse) = (gpu.zeros::<T>(inputs[0].elem_count()).unwrap(), gpu.zeros::<f32>(rows_q * call.heads).unwrap());
    unsafe {
        run_mha_rocm(
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            o.as_ptr(),
            lse.as_ptr(),
            address(&slopes).cast::<c_void>(),
            address(&at_q),
            address(&at_k),
            q_batch,
            k_batch,
            k_batch,
            q_batch,
            0,
            q_row,
            k_row,
            k_row,
            q_row,
            d,
            d,
            d,
            d,
            call.batch as u32,
            call.heads as u32,
            call.heads_k as u32,
            d,
            round(call.dim, 32),
            0.2,
            call.seqlen_q as u32,
            call.seqlen_k as u32,
            round(call.seqlen_q, 128),
            round(call.seqlen_k, 128),
            i32::from(<T as Element>::DTYPE == flashwave::DType::BF16),
            i32::from(call.causal),
            i32::from(ragged),
            left,
            right,
            call.softcap,
        );
    }
    assert!(o.to_vec().unwrap() == long.0 && lse.to_vec().unwrap() == long.1);
    Ok(long)
}

fn options(call: &Call) -> Options {
    let limit = |value: i32| usize::try_from(value).ok();
    let (left, right) =
        call.window.map_or((None, call.causal.then_some(0)), |(left, right)| (limit(left), limit(right)));
    Options {
        left,
        right,
        softcap: (call.softcap > 0.).then_some(f64::from(call.softcap)),
        slopes: call.slopes.as_ref().map(|slopes| slopes.iter().map(|&x| f64::from(x)).collect()),
        ..Options::new(f64::from(0.2f32))
    }
}

fn compare<T: Element + candle_core::WithDType>(call: &Call) {
    let dtype = <T as candle_core::WithDType>::DTYPE;
    let cpu = &candle_core::Device::Cpu;
    let Some((at_q, at_k)) = &call.ragged else {
        let (b, d) = (call.batch, call.dim);
        let q = normal((b, call.seqlen_q, call.heads, d), dtype);
        let k = normal((b, call.seqlen_k, call.heads_k, d), dtype);
        let v = normal((b, call.seqlen_k, call.heads_k, d), dtype);
        let (o, lse) = run::<T>(call, [&q, &k, &v]).unwrap();
        check(&Tensor::from_vec(o, q.shape(), cpu).unwrap(), &q, &k, &v, &options(call));
        assert!(lse.iter().all(|x| x.is_finite() && *x != 0.));
        return;
    };
    let rows = |at: &[i32]| *at.last().unwrap() as usize;
    let q = normal((rows(at_q), call.heads, call.dim), dtype);
    let k = normal((rows(at_k), call.heads_k, call.dim), dtype);
    let v = normal((rows(at_k), call.heads_k, call.dim), dtype);
    let (o, _) = run::<T>(call, [&q, &k, &v]).unwrap();
    let o = Tensor::from_vec(o, q.shape(), cpu).unwrap();
    for b in 0..call.batch {
        let part = |x: &Tensor, at: &[i32]| {
            x.narrow(0, at[b] as usize, (at[b + 1] - at[b]) as usize).unwrap().unsqueeze(0).unwrap()
        };
        check(&part(&o, at_q), &part(&q, at_q), &part(&k, at_k), &part(&v, at_k), &options(call));
    }
}

#[test]
fn every_feature() {
    let base = Call { batch: 1, seqlen_q: 20, seqlen_k: 37, heads: 4, heads_k: 4, dim: 64, ..Call::default() };
    let slopes = Some(vec![0.5, 0.25, 0.125, 0.0625]);
    let ragged = Some((vec![0, 9, 25], vec![0, 12, 30]));
    for call in [
        base.clone(),
        Call { heads_k: 1, causal: true, ..base.clone() },
        Call { heads_k: 2, batch: 2, window: Some((5, 3)), ..base.clone() },
        Call { slopes: slopes.clone(), causal: true, dim: 32, ..base.clone() },
        Call { softcap: 1.5, causal: true, ..base.clone() },
        Call { batch: 2, seqlen_q: 16, seqlen_k: 18, heads_k: 2, ragged: ragged.clone(), causal: true, ..base.clone() },
        Call {
            batch: 2,
            seqlen_q: 16,
            seqlen_k: 18,
            ragged,
            window: Some((4, -1)),
            slopes,
            softcap: 2.,
            ..base.clone()
        },
    ] {
        compare::<f16>(&call);
        compare::<bf16>(&call);
    }
}

#[test]
fn wrong_arguments_have_a_message() {
    let call = Call { batch: 1, seqlen_q: 4, seqlen_k: 4, heads: 3, heads_k: 2, dim: 8, ..Call::default() };
    let (q, k) = (normal((1, 4, 3, 8), DType::F16), normal((1, 4, 2, 8), DType::F16));
    let message = run::<f16>(&call, [&q, &k, &k]).unwrap_err();
    assert!(message.contains("heads_q must be a multiple of heads_k"), "{message}");
}
