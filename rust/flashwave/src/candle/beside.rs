//! The small tensors of a call on the host: lengths, block table, slopes, and the mask of ranges that see each other.
use candle_core::{bail, DType, Error, Result, Tensor};

use super::spec::{check_index_type, Ragged, Shapes, Spec};

#[derive(Default)]
pub(super) struct HostBeside {
    pub seqlens_q: Option<Vec<i32>>,
    pub seqlens_k: Option<Vec<i32>>,
    pub block_table: Option<(Vec<i32>, usize)>,
    pub alibi_slopes: Option<(Vec<f32>, usize)>,
    pub bias: Option<Vec<f32>>,
}

impl HostBeside {
    pub fn of(spec: &Spec, shapes: &Shapes) -> Result<HostBeside> {
        let mut beside = HostBeside::default();
        if let Some(slopes) = &spec.alibi_slopes {
            let stride = alibi_batch_stride(slopes, shapes)?;
            beside.alibi_slopes = Some((slopes.flatten_all()?.to_vec1()?, stride));
        }
        let Some(ragged) = &spec.ragged else { return Ok(beside) };
        let (q, k) = (indices("seqlens_q", &ragged.seqlens_q)?, indices("seqlens_k", &ragged.seqlens_k)?);
        if let Some(paged) = &ragged.paged {
            let table = indices("block_table", &paged.block_table)?;
            beside.block_table = Some((table, paged.block_table.dims()[1]));
        }
        beside.bias = range_bias(spec, ragged, &q, &k)?;
        (beside.seqlens_q, beside.seqlens_k) = (Some(q), Some(k));
        Ok(beside)
    }
}

/// Elements between the slopes of two sequences: they are (heads), or (batch, heads).
pub(super) fn alibi_batch_stride(slopes: &Tensor, shapes: &Shapes) -> Result<usize> {
    let (batch, heads) = (shapes.sizes.batch, shapes.sizes.heads_q);
    if slopes.dtype() != DType::F32 {
        bail!("alibi_slopes must be f32, got {:?}", slopes.dtype())
    }
    match slopes.dims() {
        [h] if *h == heads => Ok(0),
        [b, h] if *b == batch && *h == heads => Ok(heads),
        _ => bail!("alibi_slopes must have shape ({heads}) or ({batch}, {heads}), got {:?}", slopes.shape()),
    }
}

fn indices(name: &str, tensor: &Tensor) -> Result<Vec<i32>> {
    check_index_type(name, tensor)?;
    let flat = tensor.flatten_all()?;
    if tensor.dtype() == DType::I32 {
        return flat.to_vec1();
    }
    let too_large = |value| Error::msg(format!("{name}: {value} is more than 2^31 - 1"));
    flat.to_vec1::<u32>()?.into_iter().map(|value| i32::try_from(value).map_err(|_| too_large(value))).collect()
}

/// What candle calls mm_prefix_ranges: keys and queries whose positions lie in one range [start, end) see each other,
/// whatever the window says. There is no such mask in the library; a bias of 0 and -inf, (batch, 1, query, key), says the
/// same. It takes the memory of one head's scores.
fn range_bias(spec: &Spec, ragged: &Ragged, q: &[i32], k: &[i32]) -> Result<Option<Vec<f32>>> {
    let Some(ranges) = ragged.paged.as_ref().and_then(|paged| paged.mm_prefix_ranges.as_ref()) else { return Ok(None) };
    let ranges = ranges.to_vec3::<i32>()?;
    let (rows, columns) = (ragged.max_seqlen_q, ragged.max_seqlen_k);
    let left = spec.window_size_left.map_or(i64::MAX, |left| left as i64);
    let right = spec.window_size_right.map_or(i64::MAX, |right| right as i64);
    let mut bias = vec![f32::NEG_INFINITY; ranges.len() * rows * columns];
    for (b, ranges) in ranges.iter().enumerate() {
        // Lengths that are nonsense are refused by the library, which looks at them later.
        let length = |offsets: &[i32]| i64::from(offsets[b + 1]) - i64::from(offsets[b]);
        let (queries, keys) = (length(q).clamp(0, rows as i64), length(k).clamp(0, columns as i64));
        for i in 0..queries {
            let position = i + keys - queries;
            for j in 0..keys {
                let near = j >= position.saturating_sub(left) && j <= position.saturating_add(right);
                let inside = |at: i64, range: &[i32]| at >= i64::from(range[0]) && at < i64::from(range[1]);
                if near || ranges.iter().any(|range| inside(position, range) && inside(j, range)) {
                    bias[(b * rows + i as usize) * columns + j as usize] = 0.0;
                }
            }
        }
    }
    Ok(Some(bias))
}
