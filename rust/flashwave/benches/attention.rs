//! `flash_attn` on CPU tensors against attention composed of candle's operations and against candle-nn's own CPU kernel, and
//! what the crate adds to the C call.
//!
//! ```text
//! cargo bench --features candle                       # all
//! cargo bench --features candle -- overhead           # one group
//! ```
//!
//! Beside the times, the peak of allocated memory of one call of each is printed: o itself and what is used on the way.
#![allow(missing_docs)] // of what criterion's macros make

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use candle_nn::attention::AttnMask;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use flashwave::candle::flash_attn;
use flashwave::{sys, Problem, Sizes};

/// Counts what is allocated by Rust. flashwave's own scratch memory is asked of the library and added.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, with two counters.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn peak_of<R>(body: impl FnOnce() -> R) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    black_box(body());
    PEAK.load(Ordering::Relaxed) - before
}

/// softmax(q kᵀ · scale) v as candle's models compute it, on (batch, head, row, dim), the layout that its matmul likes best.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, hidden: Option<&Tensor>) -> Result<Tensor> {
    let mut scores = (q * scale)?.matmul(&k.t()?)?;
    if let Some(hidden) = hidden {
        scores = scores.broadcast_add(hidden)?;
    }
    candle_nn::ops::softmax_last_dim(&scores)?.matmul(v)
}

fn random(shape: (usize, usize, usize, usize)) -> Tensor {
    Tensor::randn(0f32, 1., shape, &Device::Cpu).unwrap()
}

/// Of the library, for one call.
fn scratch(sizes: Sizes, q: &Tensor) -> usize {
    let data = q.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let mut o = data.clone();
    let problem = Problem::new(sizes, &data, &data, &data, &mut o);
    problem.workspace_size(&flashwave::Device::cpu()).unwrap()
}

fn against_candle(c: &mut Criterion) {
    const HEADS: usize = 4;
    for causal in [false, true] {
        let mut group = c.benchmark_group(if causal { "causal" } else { "full" });
        group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
        for dim in [64, 128] {
            for seqlen in [512, 1024, 2048, 4096] {
                let [q, k, v] = [(); 3].map(|()| random((1, seqlen, HEADS, dim)));
                let [qt, kt, vt] = [&q, &k, &v].map(|x| x.transpose(1, 2).unwrap().contiguous().unwrap());
                let hide = |i: usize, j: usize| if j > i { f32::NEG_INFINITY } else { 0. };
                let hidden = causal.then(|| {
                    let mask: Vec<f32> = (0..seqlen).flat_map(|i| (0..seqlen).map(move |j| hide(i, j))).collect();
                    Tensor::from_vec(mask, (seqlen, seqlen), &Device::Cpu).unwrap()
                });
                let scale = 1. / (dim as f32).sqrt();
                let ours = || flash_attn(&q, &k, &v, scale, causal).unwrap();
                let theirs = || composed(&qt, &kt, &vt, f64::from(scale), hidden.as_ref()).unwrap();
                let difference = (ours().transpose(1, 2).unwrap() - theirs()).unwrap().abs().unwrap();
                let worst = difference.flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
                assert!(worst < 1e-4, "a wrong result is not worth timing: differs by {worst}");

                let sizes = Sizes {
                    batch: 1,
                    seqlen_q: seqlen,
                    seqlen_k: seqlen,
                    heads_q: HEADS,
                    heads_k: HEADS,
                    dim_qk: dim,
                    dim_v: dim,
                };
                let kib = |bytes: usize| bytes / 1024;
                let (our_peak, their_peak) = (peak_of(ours) + scratch(sizes, &q), peak_of(theirs));
                println!("memory of d{dim}/s{seqlen}: flashwave {} KiB, candle {} KiB", kib(our_peak), kib(their_peak));

                let name = |who: &str| BenchmarkId::new(format!("{who}/d{dim}"), seqlen);
                group.bench_function(name("flashwave"), |b| b.iter(ours));
                group.bench_function(name("candle"), |b| b.iter(theirs));
                let mask = if causal { AttnMask::causal() } else { AttnMask::None };
                let cpu_flash = || candle_nn::attention::flash_attn::<f32>(&q, &k, &v, scale, mask.clone(), None, None);
                let difference = (cpu_flash().unwrap() - theirs()).unwrap().abs().unwrap();
                let worst = difference.flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
                assert!(worst < 1e-4, "candle-nn's differs by {worst}");
                group.bench_function(name("candle-nn"), |b| b.iter(cpu_flash));
            }
        }
        group.finish();
    }
}

/// A tiny problem, where the call is most of the time: through candle, through `Problem`, and in C.
fn overhead(c: &mut Criterion) {
    let (seqlen, heads, dim) = (16usize, 2usize, 32usize);
    let sizes =
        Sizes { batch: 1, seqlen_q: seqlen, seqlen_k: seqlen, heads_q: heads, heads_k: heads, dim_qk: dim, dim_v: dim };
    let [q, k, v] = [(); 3].map(|()| random((1, seqlen, heads, dim)));
    let [q_data, k_data, v_data] = [&q, &k, &v].map(|x| x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    let mut o = vec![0f32; q_data.len()];
    let device = flashwave::Device::cpu();
    let mut group = c.benchmark_group("overhead");
    group.bench_function("candle", |b| b.iter(|| flash_attn(&q, &k, &v, 0.2, true).unwrap()));
    group.bench_function("Problem", |b| {
        b.iter(|| {
            let mut problem = Problem::new(sizes, &q_data, &k_data, &v_data, &mut o).softmax_scale(0.2).causal(true);
            problem.forward(&device).unwrap();
        })
    });
    let view = |data: *const f32| sys::fw_tensor {
        data: data.cast_mut().cast(),
        stride: [(seqlen * heads * dim) as i64, (heads * dim) as i64, dim as i64, 1],
        dtype: sys::FW_F32,
        reserved: 0,
    };
    group.bench_function("C", |b| {
        b.iter(|| {
            let mut a = std::mem::MaybeUninit::<sys::fw_attention>::uninit();
            // SAFETY: the struct is filled, and the tensors have these sizes.
            unsafe {
                sys::fw_attention_init(a.as_mut_ptr(), size_of::<sys::fw_attention>());
                let mut a = a.assume_init();
                (a.batch, a.seqlen_q, a.seqlen_k) = (1, seqlen as i64, seqlen as i64);
                (a.heads_q, a.heads_k, a.dim_qk, a.dim_v) = (heads as i64, heads as i64, dim as i64, dim as i64);
                (a.q, a.k, a.v) = (view(q_data.as_ptr()), view(k_data.as_ptr()), view(v_data.as_ptr()));
                a.o = view(o.as_mut_ptr());
                (a.softmax_scale, a.flags) = (0.2, sys::FW_CAUSAL);
                assert_eq!(sys::fw_forward(device.as_raw(), &a, std::ptr::null()), sys::FW_OK);
            }
        })
    });
    group.finish();
}

criterion_group!(benches, overhead, against_candle);
criterion_main!(benches);
