//! The safe API, against attention written down in double precision.
use flashwave::{Device, Error, Exec, Format, Gradients, Problem, Sizes, Tensor, TensorMut};
use half::{bf16, f16};

/// Numbers like N(0, 1), the same every time.
fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f64>() - 6.0) as f32).collect()
}

/// Dense attention without gaps; `left`, `right`: how far a query sees.
fn reference(s: Sizes, q: &[f32], k: &[f32], v: &[f32], left: i64, right: i64) -> (Vec<f64>, Vec<f64>) {
    let (mut o, mut lse) = (vec![0f64; s.batch * s.seqlen_q * s.heads_q * s.dim_v], Vec::new());
    let group = s.heads_q / s.heads_k;
    for b in 0..s.batch {
        for i in 0..s.seqlen_q {
            for h in 0..s.heads_q {
                let row_q = ((b * s.seqlen_q + i) * s.heads_q + h) * s.dim_qk;
                let place = i as i64 + s.seqlen_k as i64 - s.seqlen_q as i64;
                let (mut sum, mut row) = (0f64, vec![0f64; s.dim_v]);
                for j in 0..s.seqlen_k {
                    if (j as i64) < place.saturating_sub(left) || (j as i64) > place.saturating_add(right) {
                        continue;
                    }
                    let at = (b * s.seqlen_k + j) * s.heads_k + h / group;
                    let dot = |d: usize| f64::from(q[row_q + d]) * f64::from(k[at * s.dim_qk + d]);
                    let weight = ((0..s.dim_qk).map(dot).sum::<f64>() / (s.dim_qk as f64).sqrt()).exp();
                    sum += weight;
                    for (d, o) in row.iter_mut().enumerate() {
                        *o += weight * f64::from(v[at * s.dim_v + d]);
                    }
                }
                lse.push(sum.ln());
                let row_o = ((b * s.seqlen_q + i) * s.heads_q + h) * s.dim_v;
                for d in 0..s.dim_v {
                    o[row_o + d] = if sum > 0.0 { row[d] / sum } else { 0.0 };
                }
            }
        }
    }
    (o, lse)
}

fn assert_close(got: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    for (i, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        let got = f64::from(got);
        let close = got == wanted || (got - wanted).abs() <= tolerance;
        assert!(close, "element {i}: {got} instead of {wanted}");
    }
}

const SIZES: Sizes = Sizes { batch: 2, seqlen_q: 17, seqlen_k: 33, heads_q: 4, heads_k: 2, dim_qk: 24, dim_v: 40 };

fn inputs(s: Sizes) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let rows = s.batch * s.seqlen_k * s.heads_k;
    (random(s.batch * s.seqlen_q * s.heads_q * s.dim_qk, 1), random(rows * s.dim_qk, 2), random(rows * s.dim_v, 3))
}

fn output(s: Sizes) -> (Vec<f32>, Vec<f32>) {
    let rows = s.batch * s.seqlen_q * s.heads_q;
    (vec![f32::NAN; rows * s.dim_v], vec![f32::NAN; rows])
}

#[test]
fn forward_on_slices() {
    let (q, k, v) = inputs(SIZES);
    for (left, right) in [(None, None), (None, Some(0)), (Some(5), Some(3))] {
        let (mut o, mut lse) = output(SIZES);
        let mut problem = Problem::new(SIZES, &q, &k, &v, &mut o).lse(&mut lse).window(left, right);
        let report = problem.forward(&Device::cpu()).unwrap();
        assert_eq!(report.device(), "cpu");
        let far = |limit: Option<usize>| limit.map_or(i64::MAX / 2, |limit| limit as i64);
        let (wanted_o, wanted_lse) = reference(SIZES, &q, &k, &v, far(left), far(right));
        assert_close(&o, &wanted_o, 1e-5);
        assert_close(&lse, &wanted_lse, 1e-5);
    }
}

#[test]
fn rows_that_see_nothing() {
    let s = Sizes { seqlen_k: 3, ..SIZES };
    let (q, k, v) = inputs(s);
    let (mut o, mut lse) = output(s);
    Problem::new(s, &q, &k, &v, &mut o).lse(&mut lse).causal(true).forward(&Device::cpu()).unwrap();
    assert!(o[..s.heads_q * s.dim_v].iter().all(|&x| x == 0.0));
    assert_eq!(lse[0], f32::NEG_INFINITY);
}

#[test]
fn half_precision() {
    let (q, k, v) = inputs(SIZES);
    let (wanted, _) = reference(SIZES, &q, &k, &v, i64::MAX / 2, i64::MAX / 2);
    let to = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
    let mut o = vec![f16::NAN; wanted.len()];
    Problem::new(SIZES, &to(&q), &to(&k), &to(&v), &mut o).forward(&Device::cpu()).unwrap();
    assert_close(&o.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), &wanted, 5e-3);
    let to = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let mut o = vec![bf16::NAN; wanted.len()];
    Problem::new(SIZES, &to(&q), &to(&k), &to(&v), &mut o).forward(&Device::cpu()).unwrap();
    assert_close(&o.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), &wanted, 4e-2);
}

/// (batch, head, row, dim) in, wider rows out.
#[test]
fn strides() {
    let s = SIZES;
    let (q, k, v) = inputs(s);
    let (wanted, _) = reference(s, &q, &k, &v, i64::MAX / 2, i64::MAX / 2);
    let mut turned = vec![0f32; q.len()];
    for (index, &x) in q.iter().enumerate() {
        let (d, rest) = (index % s.dim_qk, index / s.dim_qk);
        let (h, rest) = (rest % s.heads_q, rest / s.heads_q);
        let (i, b) = (rest % s.seqlen_q, rest / s.seqlen_q);
        turned[((b * s.heads_q + h) * s.seqlen_q + i) * s.dim_qk + d] = x;
    }
    let strides = [s.heads_q * s.seqlen_q * s.dim_qk, s.dim_qk, s.seqlen_q * s.dim_qk, 1];
    let wide = s.dim_v + 3;
    let mut o = vec![7f32; s.batch * s.seqlen_q * s.heads_q * wide];
    let o_strides = [s.seqlen_q * s.heads_q * wide, s.heads_q * wide, wide, 1];
    let q = Tensor::from_slice(&turned).strides(strides);
    let out = TensorMut::from_slice(&mut o).strides(o_strides);
    Problem::new(s, q, &k, &v, out).forward(&Device::cpu()).unwrap();
    let packed: Vec<f32> = o.chunks(wide).flat_map(|row| row[..s.dim_v].to_vec()).collect();
    assert_close(&packed, &wanted, 1e-5);
    assert!(o.chunks(wide).all(|row| row[s.dim_v..] == [7.0; 3]));
}

/// The derivative along a direction, by differences of the double precision reference.
#[test]
fn gradients() {
    let (q, k, v) = inputs(SIZES);
    let (mut o, mut lse) = output(SIZES);
    Problem::new(SIZES, &q, &k, &v, &mut o).lse(&mut lse).causal(true).forward(&Device::cpu()).unwrap();
    let d_o = random(o.len(), 4);
    let (mut dq, mut dk, mut dv) = (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()], vec![f32::NAN; v.len()]);
    let mut gradients = Gradients::new(&d_o).dq(&mut dq).dk(&mut dk).dv(&mut dv);
    let problem = Problem::of_forward(SIZES, &q, &k, &v, &o, &lse).causal(true);
    problem.backward(&Device::cpu(), &mut gradients).unwrap();

    let along = |x: &[f32], direction: &[f32], by: f32| x.iter().zip(direction).map(|(x, d)| x + by * d).collect();
    let loss = |q: &[f32], k: &[f32], v: &[f32]| {
        let (o, _) = reference(SIZES, q, k, v, i64::MAX / 2, 0);
        o.iter().zip(&d_o).map(|(o, d)| o * f64::from(*d)).sum::<f64>()
    };
    for (number, (x, gradient)) in [(&q, &dq), (&k, &dk), (&v, &dv)].into_iter().enumerate() {
        let direction = random(x.len(), 10 + number as u64);
        let moved = |by: f32| {
            let x: Vec<f32> = along(x, &direction, by);
            match number {
                0 => loss(&x, &k, &v),
                1 => loss(&q, &x, &v),
                _ => loss(&q, &k, &x),
            }
        };
        let step = 1e-3;
        let wanted = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
        let got: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        assert!((got - wanted).abs() < 1e-2 * wanted.abs().max(1.0), "gradient {number}: {got} instead of {wanted}");
    }
}

/// Sequences of 3 and 7 rows give what they give alone.
#[test]
fn ragged_batches_and_pages() {
    let (heads, dim) = (2, 16);
    let lengths = [3usize, 7];
    let alone = |b: usize| Sizes {
        batch: 1,
        seqlen_q: lengths[b],
        seqlen_k: lengths[b],
        heads_q: heads,
        heads_k: heads,
        dim_qk: dim,
        dim_v: dim,
    };
    let row = heads * dim;
    let (q, k, v) = (random(10 * row, 1), random(10 * row, 2), random(10 * row, 3));
    let part = |x: &[f32], b: usize| x[b * 3 * row..(b * 3 + lengths[b]) * row].to_vec();
    let wanted: Vec<f64> =
        (0..2).flat_map(|b| reference(alone(b), &part(&q, b), &part(&k, b), &part(&v, b), i64::MAX / 2, 0).0).collect();
    let sizes = Sizes { batch: 2, seqlen_q: 7, seqlen_k: 8, ..alone(0) };
    let offsets = [0i32, 3, 10];
    let mut o = vec![f32::NAN; q.len()];
    let mut problem = Problem::new(sizes, &q, &k, &v, &mut o).causal(true);
    problem = problem.cu_seqlens_q(&offsets, 10).cu_seqlens_k(&offsets, 10);
    problem.forward(&Device::cpu()).unwrap();
    assert_close(&o, &wanted, 1e-5);

    // The keys in pages of 4 rows, page 4 unused: sequence 0 has page 3, sequence 1 pages 0 and 2.
    let pages = |x: &[f32]| {
        let mut pages = vec![f32::NAN; 5 * 4 * row];
        for (page, from, rows) in [(3, 0, 3), (0, 3, 4), (2, 7, 3)] {
            pages[page * 4 * row..][..rows * row].copy_from_slice(&x[from * row..][..rows * row]);
        }
        pages
    };
    let (k, v) = (pages(&k), pages(&v));
    let table = [3i32, -1, 0, 2];
    let mut o = vec![f32::NAN; q.len()];
    let mut problem = Problem::new(sizes, &q, &k, &v, &mut o).causal(true).cu_seqlens_q(&offsets, 10);
    problem = problem.cu_seqlens_k(&offsets, 0).block_table(&table, 2, 4, 5);
    problem.forward(&Device::cpu()).unwrap();
    assert_close(&o, &wanted, 1e-5);
}

#[test]
fn append_to_a_cache() {
    let s = Sizes { batch: 1, seqlen_q: 2, seqlen_k: 8, heads_q: 1, heads_k: 1, dim_qk: 8, dim_v: 8 };
    let (q, all_k, all_v) = (random(2 * 8, 1), random(5 * 8, 2), random(5 * 8, 3));
    let (mut k, mut v) = (vec![f32::NAN; 64], vec![f32::NAN; 64]);
    k[..24].copy_from_slice(&all_k[..24]);
    v[..24].copy_from_slice(&all_v[..24]);
    let (used, new_k, new_v) = ([3i32], all_k[24..].to_vec(), all_v[24..].to_vec());
    let mut o = vec![f32::NAN; 16];
    let problem = Problem::with_cache(s, &q, &mut k, &mut v, &mut o).seqused_k(&used).causal(true);
    problem.append(&new_k, &new_v, 2).forward(&Device::cpu()).unwrap();
    let (wanted, _) = reference(Sizes { seqlen_k: 5, ..s }, &q, &all_k, &all_v, i64::MAX / 2, 0);
    assert_close(&o, &wanted, 1e-5);
    assert_eq!(k[..40], all_k[..]);

    let mut problem = Problem::new(s, &q, &k, &v, &mut o).seqused_k(&used).append(&new_k, &new_v, 2);
    let error = problem.forward(&Device::cpu()).unwrap_err();
    assert!(error.message().contains("with_cache"), "{error}");
}

#[test]
fn nothing_reaches_beyond_its_memory() {
    let (q, k, v) = inputs(SIZES);
    let (mut o, mut lse) = output(SIZES);
    let short = k[1..].to_vec();
    let cpu = Device::cpu();
    let refused = |problem: &mut Problem<'_>, text: &str| {
        let error = problem.forward(&cpu).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert!(error.message().contains(text), "{error} instead of {text}");
    };
    refused(&mut Problem::new(SIZES, &q, &short, &v, &mut o), "k has");
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).lse(&mut lse[1..]), "lse has");
    let far = Tensor::from_slice(&v).strides([usize::MAX / 4, 80, 40, 1]);
    refused(&mut Problem::new(SIZES, &q, &k, far, &mut o), "v has");
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).alibi_slopes(&[0.5; 3], 0), "alibi_slopes has 3");
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).alibi_slopes(&[0.5; 7], 4), "alibi_slopes has 7");
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).seqused_k(&[1]), "seqused_k has 1");
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).seqused_k(&[1, 99]), "seqused_k");
    // The library's own words.
    refused(&mut Problem::new(SIZES, &q, &k, &v, &mut o).softcap(-1.0), "softcap must be finite");
    refused(&mut Problem::new(Sizes { heads_q: 3, ..SIZES }, &q, &k, &v, &mut o), "heads_q must be a multiple");
}

#[test]
fn kernels_by_name_and_explanations() {
    let (q, k, v) = inputs(SIZES);
    let (mut o, _) = output(SIZES);
    let cpu = Device::cpu();
    let mut problem = Problem::new(SIZES, &q, &k, &v, &mut o);
    let exec = Exec { force_kernel: "reference_fwd".into(), num_threads: 1, ..Exec::default() };
    assert_eq!(problem.forward_with(&cpu, &exec).unwrap().kernel(), "reference_fwd");
    assert!(cpu.kernels().iter().any(|name| name == "reference_fwd"));
    let wrong = Exec { force_kernel: "no_such_kernel".into(), ..Exec::default() };
    assert!(matches!(problem.forward_with(&cpu, &wrong), Err(Error::Unsupported(_))));
    assert!(problem.explain(&cpu, Format::Text).unwrap().contains("kernel"));
    assert!(problem.explain(&cpu, Format::Json).unwrap().starts_with('{'));
    let flops = 4.0 * 2.0 * 17.0 * 33.0 * 4.0 * (24.0 + 40.0) / 2.0;
    assert_eq!(problem.cost(&cpu).unwrap().flops, flops);
    problem.workspace_size(&cpu).unwrap();
}

#[test]
fn devices() {
    assert_eq!(Device::all()[0], Device::cpu());
    assert_eq!(Device::cpu().info().name, "cpu");
    assert!(matches!(Device::open("elsewhere"), Err(Error::NoDevice(_))));
    let mut buffer = Device::cpu().zeros::<f32>(5).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0.0; 5]);
    buffer.copy_from(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    assert_eq!(buffer.to_vec().unwrap()[4], 5.0);
    assert!(buffer.copy_from(&[1.0]).is_err());
    assert!(Device::cpu().zeros::<f32>(0).unwrap().is_empty());
}

/// The AMD kernels, executed on an instruction-level emulator.
#[test]
fn device_buffers_of_an_emulated_gpu() {
    let gpu = Device::open("emu:gfx942").unwrap();
    let (q, k, v) = inputs(SIZES);
    let (o, lse) = output(SIZES);
    let [q_there, k_there, v_there] = [&q, &k, &v].map(|x| gpu.upload(x).unwrap());
    let (mut o_there, mut lse_there) = (gpu.upload(&o).unwrap(), gpu.upload(&lse).unwrap());
    let mut problem = Problem::new(SIZES, &q_there, &k_there, &v_there, &mut o_there).lse(&mut lse_there).causal(true);
    let report = problem.forward(&gpu).unwrap();
    assert_eq!(report.device(), "emu:gfx942");
    let (wanted_o, wanted_lse) = reference(SIZES, &q, &k, &v, i64::MAX / 2, 0);
    assert_close(&o_there.to_vec().unwrap(), &wanted_o, 1e-4);
    assert_close(&lse_there.to_vec().unwrap(), &wanted_lse, 1e-4);
    assert!(gpu.counters().unwrap().starts_with('['));

    // Memory of the host is not the GPU's, and indices in its memory are checked.
    let error = Problem::new(SIZES, &q, &k_there, &v_there, &mut o_there).forward(&gpu).unwrap_err();
    assert_eq!(error.message(), "q lies in the memory of the host, but emu:gfx942 is to compute");
    let lengths = gpu.upload(&[33i32, 34]).unwrap();
    let mut problem = Problem::new(SIZES, &q_there, &k_there, &v_there, &mut o_there).seqused_k(&lengths);
    let error = problem.forward(&gpu).unwrap_err();
    assert!(error.message().contains("seqused_k"), "{error}");
    let lengths = gpu.upload(&[33i32, 5]).unwrap();
    let mut problem = Problem::new(SIZES, &q_there, &k_there, &v_there, &mut o_there).seqused_k(&lengths);
    problem.forward(&gpu).unwrap();
}

#[test]
fn threads_may_share_what_says_so() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Device>();
    send_and_sync::<flashwave::DeviceBuffer<f32>>();
    send_and_sync::<flashwave::Stream>();
    send_and_sync::<Problem<'_>>();
    send_and_sync::<Gradients<'_>>();
    send_and_sync::<Error>();
    let (q, k, v) = inputs(SIZES);
    let (wanted, _) = reference(SIZES, &q, &k, &v, i64::MAX / 2, i64::MAX / 2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut o, _) = output(SIZES);
                Problem::new(SIZES, &q, &k, &v, &mut o).forward(&Device::cpu()).unwrap();
                assert_close(&o, &wanted, 1e-5);
            });
        }
    });
}
