//! Every function of candle-flash-attn.
use candle_core::{DType, Device, Tensor};
use flashwave::candle::*;

use super::plain::{attention, check, largest_difference, normal, Options};

const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Grouped heads, fewer queries than keys.
fn inputs(dtype: DType) -> (Tensor, Tensor, Tensor) {
    (normal((2, 37, 4, 32), dtype), normal((2, 61, 2, 32), dtype), normal((2, 61, 2, 32), dtype))
}

fn slopes() -> (Tensor, Vec<f64>) {
    (Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu).unwrap(), vec![0.5, 0.25, 0.125, 0.0625])
}

#[test]
fn plain_and_causal() {
    for dtype in DTYPES {
        let (q, k, v) = inputs(dtype);
        check(&flash_attn(&q, &k, &v, 0.2, false).unwrap(), &q, &k, &v, &Options::new(0.2));
        check(&flash_attn(&q, &k, &v, 0.2, true).unwrap(), &q, &k, &v, &Options::causal(0.2));
    }
}

#[test]
fn windowed() {
    for dtype in DTYPES {
        let (q, k, v) = inputs(dtype);
        for (left, right) in
            [(Some(7), Some(3)), (None, Some(0)), (Some(5), None), (Some(0), Some(0)), (Some(500), None)]
        {
            let o = flash_attn_windowed(&q, &k, &v, 0.2, left, right).unwrap();
            check(&o, &q, &k, &v, &Options { left, right, ..Options::new(0.2) });
        }
    }
}

#[test]
fn alibi() {
    let (slopes, values) = slopes();
    let options = Options { slopes: Some(values), ..Options::new(0.2) };
    for dtype in DTYPES {
        let (q, k, v) = inputs(dtype);
        let o = flash_attn_alibi(&q, &k, &v, &slopes, 0.2, true).unwrap();
        check(&o, &q, &k, &v, &Options { right: Some(0), ..options.clone() });
        let (left, right) = (Some(9), Some(2));
        let o = flash_attn_alibi_windowed(&q, &k, &v, &slopes, 0.2, left, right).unwrap();
        check(&o, &q, &k, &v, &Options { left, right, ..options.clone() });
        let o = flash_attn_alibi_windowed_softcap(&q, &k, &v, Some(&slopes), 0.2, left, right, 1.5).unwrap();
        check(&o, &q, &k, &v, &Options { left, right, softcap: Some(1.5), ..options.clone() });
        let o = flash_attn_alibi_windowed_softcap(&q, &k, &v, None, 0.2, None, Some(0), 1.5).unwrap();
        check(&o, &q, &k, &v, &Options { softcap: Some(1.5), ..Options::causal(0.2) });
    }
}

#[test]
fn slopes_of_each_sequence() {
    let (q, k, v) = inputs(DType::F32);
    let slopes = Tensor::new(&[[0.5f32, 0.25, 0.125, 0.0625], [0.1, 0.2, 0.3, 0.4]], &Device::Cpu).unwrap();
    let o = flash_attn_alibi(&q, &k, &v, &slopes, 0.2, false).unwrap();
    for (b, values) in [vec![0.5, 0.25, 0.125, 0.0625], vec![0.1, 0.2, 0.3, 0.4]].into_iter().enumerate() {
        let of = |x: &Tensor| x.narrow(0, b, 1).unwrap();
        check(&of(&o), &of(&q), &of(&k), &of(&v), &Options { slopes: Some(values), ..Options::new(0.2) });
    }
}

#[test]
fn heads_dims_and_strides() {
    // One key head; a head dim of its own for v; odd ones; the largest.
    for (heads_k, dim, dim_v) in [(1, 32, 32), (4, 64, 24), (2, 7, 13), (4, 512, 512), (4, 1, 1)] {
        let (q, k) = (normal((1, 20, 4, dim), DType::F32), normal((1, 30, heads_k, dim), DType::F32));
        let v = normal((1, 30, heads_k, dim_v), DType::F32);
        let o = flash_attn(&q, &k, &v, 0.3, true).unwrap();
        assert_eq!(o.dims(), [1, 20, 4, dim_v]);
        check(&o, &q, &k, &v, &Options::causal(0.3));
    }
    // (b, h, s, d) seen as (b, s, h, d); parts of a packed qkv; keys that broadcast over the batch.
    let q = normal((2, 4, 21, 32), DType::BF16).transpose(1, 2).unwrap();
    let packed = normal((2, 33, 3, 4, 32), DType::BF16);
    let v = packed.narrow(2, 2, 1).unwrap().squeeze(2).unwrap();
    let k = normal((1, 33, 4, 32), DType::BF16).broadcast_as((2, 33, 4, 32)).unwrap();
    assert!(!q.is_contiguous() && !v.is_contiguous() && !k.is_contiguous());
    check(&flash_attn(&q, &k, &v, 0.2, true).unwrap(), &q, &k, &v, &Options::causal(0.2));
}

#[test]
fn rows_without_a_key_are_zero() {
    let (q, k) = (normal((1, 9, 2, 16), DType::F32), normal((1, 4, 2, 16), DType::F32));
    let o = flash_attn(&q, &k, &k, 0.25, true).unwrap();
    let first = o.narrow(1, 0, 5).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(first.iter().all(|&x| x == 0.));
    let empty = flash_attn(
        &normal((0, 9, 2, 16), DType::F32),
        &normal((0, 4, 2, 16), DType::F32),
        &normal((0, 4, 2, 16), DType::F32),
        1.,
        true,
    );
    assert_eq!(empty.unwrap().dims(), [0, 9, 2, 16]);
}

#[test]
fn statistics() {
    let (q, k, v) = inputs(DType::F32);
    let op = FlashAttn {
        softmax_scale: 0.2,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: None,
        softcap: None,
    };
    let (o, lse) = op.apply_with_lse(&q, &k, &v).unwrap();
    check(&o, &q, &k, &v, &Options::new(0.2));
    assert_eq!(lse.dims(), [2, 4, 37]);
    let heads_first = |x: &Tensor| x.transpose(1, 2).unwrap().contiguous().unwrap();
    let repeated = k.unsqueeze(3).unwrap().broadcast_as((2, 61, 2, 2, 32)).unwrap().reshape((2, 61, 4, 32)).unwrap();
    let scores = (heads_first(&q).matmul(&heads_first(&repeated).t().unwrap()).unwrap() * 0.2).unwrap();
    assert!(largest_difference(&lse, &scores.log_sum_exp(3).unwrap()) < 1e-5);
    // As candle applies an operation of its own.
    let applied = q.apply_op3(&k, &v, op).unwrap();
    assert_eq!(largest_difference(&applied, &o), 0.);
}

/// Three sequences behind each other, one of them without queries.
struct Ragged {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqlens_q: Tensor,
    seqlens_k: Tensor,
    q_at: [usize; 4],
    k_at: [usize; 4],
}

impl Ragged {
    fn new(dtype: DType) -> Self {
        let (q_at, k_at) = ([0usize, 5, 5, 25], [0usize, 9, 12, 40]);
        let offsets = |at: [usize; 4]| Tensor::new(&at.map(|x| x as u32), &Device::Cpu).unwrap();
        Ragged {
            q: normal((25, 4, 16), dtype),
            k: normal((40, 2, 16), dtype),
            v: normal((40, 2, 16), dtype),
            seqlens_q: offsets(q_at),
            seqlens_k: offsets(k_at),
            q_at,
            k_at,
        }
    }

    fn check(&self, o: &Tensor, options: &Options) {
        assert_eq!(o.dims(), self.q.dims());
        for b in [0, 2] {
            let part =
                |x: &Tensor, at: &[usize; 4]| x.narrow(0, at[b], at[b + 1] - at[b]).unwrap().unsqueeze(0).unwrap();
            let (q, o) = (part(&self.q, &self.q_at), part(o, &self.q_at));
            check(&o, &q, &part(&self.k, &self.k_at), &part(&self.v, &self.k_at), options);
        }
    }
}

#[test]
fn varlen() {
    let (slopes, values) = slopes();
    for dtype in DTYPES {
        let r = Ragged::new(dtype);
        let (q, k, v, at_q, at_k) = (&r.q, &r.k, &r.v, &r.seqlens_q, &r.seqlens_k);
        let plain = Options::new(0.25);
        let with_slopes = Options { slopes: Some(values.clone()), ..plain.clone() };
        let (left, right) = (Some(4), Some(1));
        r.check(&flash_attn_varlen(q, k, v, at_q, at_k, 20, 28, 0.25, false).unwrap(), &plain);
        r.check(&flash_attn_varlen(q, k, v, at_q, at_k, 20, 28, 0.25, true).unwrap(), &Options::causal(0.25));
        let o = flash_attn_varlen_windowed(q, k, v, at_q, at_k, 20, 28, 0.25, left, right).unwrap();
        r.check(&o, &Options { left, right, ..plain.clone() });
        let o = flash_attn_varlen_alibi(q, k, v, &slopes, at_q, at_k, 20, 28, 0.25, true).unwrap();
        r.check(&o, &Options { right: Some(0), ..with_slopes.clone() });
        let o = flash_attn_varlen_alibi_windowed(q, k, v, &slopes, at_q, at_k, 20, 28, 0.25, left, right).unwrap();
        r.check(&o, &Options { left, right, ..with_slopes.clone() });
        let o =
            flash_attn_varlen_alibi_windowed_softcap(q, k, v, Some(&slopes), at_q, at_k, 20, 28, 0.25, left, right, 2.);
        r.check(&o.unwrap(), &Options { left, right, softcap: Some(2.), ..with_slopes.clone() });
        let o = flash_attn_varlen_alibi_windowed_softcap(q, k, v, None, at_q, at_k, 20, 28, 0.25, None, None, 2.);
        r.check(&o.unwrap(), &Options { softcap: Some(2.), ..plain });
    }
}

#[test]
fn varlen_paged() {
    for (dtype, page) in [(DType::F32, 32), (DType::BF16, 5), (DType::F16, 1)] {
        let r = Ragged::new(dtype);
        let blocks = 28usize.div_ceil(page);
        // Pages are dealt out backwards from a pool that has some to spare.
        let (mut next, mut table, mut rows) = (3 * blocks + 2, Vec::new(), Vec::new());
        for b in 0..3 {
            for block in 0..blocks {
                next -= 1;
                table.push(next as u32);
                for row in 0..page {
                    let key = r.k_at[b] + block * page + row;
                    if key < r.k_at[b + 1] {
                        rows.push((next * page + row, key));
                    }
                }
            }
        }
        let pool = |x: &Tensor| {
            let mut source = vec![40u32; (3 * blocks + 2) * page]; // row 40 is a key that nobody sees
            rows.iter().for_each(|&(to, from)| source[to] = from as u32);
            let unseen = Tensor::full(1e4f32, (1, 2, 16), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let all = Tensor::cat(&[x, &unseen], 0).unwrap();
            let source = Tensor::new(source, &Device::Cpu).unwrap();
            all.index_select(&source, 0).unwrap().reshape((3 * blocks + 2, page, 2, 16)).unwrap()
        };
        let (k, v) = (pool(&r.k), pool(&r.v));
        let table = Tensor::from_vec(table, (3, blocks), &Device::Cpu).unwrap();
        let call = |table: &Tensor, ranges: Option<&Tensor>, left, right, softcap| {
            flash_attn_varlen_paged_windowed(
                &r.q,
                &k,
                &v,
                &r.seqlens_q,
                &r.seqlens_k,
                table,
                ranges,
                20,
                28,
                0.25,
                left,
                right,
                page,
                softcap,
            )
            .unwrap()
        };
        r.check(&call(&table, None, None, Some(0), None), &Options::causal(0.25));
        let signed = table.to_dtype(DType::I64).unwrap().to_vec2::<i64>().unwrap();
        let signed: Vec<i32> = signed.into_iter().flatten().map(|page| page as i32).collect();
        let signed = Tensor::from_vec(signed, (3, blocks), &Device::Cpu).unwrap();
        let options = Options { left: Some(6), right: Some(2), softcap: Some(3.), ..Options::new(0.25) };
        r.check(&call(&signed, None, Some(6), Some(2), Some(3.)), &options);
        // Positions 2 to 6 and 9 to 19 see each other, beyond the causal window. Empty ranges say nothing.
        let ranges = Tensor::new(&[[[2i32, 7], [9, 20], [0, 0]]; 3], &Device::Cpu).unwrap();
        let options = Options { left: Some(6), ranges: vec![(2, 7), (9, 20)], ..Options::causal(0.25) };
        r.check(&call(&table, Some(&ranges), Some(6), Some(0), None), &options);
    }
}

/// The largest score is far from the others' range; a softmax that did not subtract it would overflow.
#[test]
fn large_scores() {
    let (q, k, v) = inputs(DType::F32);
    let options = Options::new(20.);
    let o = flash_attn(&q, &k, &v, 20., false).unwrap();
    let exact = attention(&q, &k, &v, &options).unwrap();
    assert!(largest_difference(&o, &exact) < 1e-3);
}
