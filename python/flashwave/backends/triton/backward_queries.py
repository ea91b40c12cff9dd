"""The pass of the backward for dq, and for what belongs to pairs: the gradients of slopes and bias."""

import triton.language as tl

import triton

from .backward import _pairs
from .scores import LOG2_E, SIZES, kept, key_rows, key_runs, load_tile, place_of, sequence_rows, store_tile


@triton.jit
def _add_keys(
    dq,
    slope_part,
    q,
    do,
    row_lse,
    row_delta,
    k_base,
    v_base,
    stride_k,
    stride_v,
    first,
    last,
    i0,
    queries,
    keys,
    left,
    right,
    bias,
    dbias,
    dbias_stride_q,
    bias_stride_q,
    bias_stride_k,
    slope,
    factor,
    cap,
    cap_factor,
    rng_state,
    batch_head,
    threshold,
    keep_scale,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SLOPES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds what keys first .. last - 1 give to dq of the queries from i0 on, and to the gradient of their slope."""
    rows = i0 + tl.arange(0, BLOCK_M)
    i = rows[:, None]
    for j0 in range(first, last, BLOCK_N):
        j = (j0 + tl.arange(0, BLOCK_N))[None, :]
        k = load_tile(k_base + tl.cast(j0, tl.int64) * stride_k, keys - j0, stride_k, DIM, BLOCK_N, BLOCK_D, MASKED)
        v = load_tile(v_base + tl.cast(j0, tl.int64) * stride_v, keys - j0, stride_v, DIM_V, BLOCK_N, BLOCK_DV, MASKED)
        p, curve = _pairs(
            q, tl.trans(k), i, j, i0, j0, queries, keys, left, right, bias, bias_stride_q, bias_stride_k, slope,
            factor, cap, cap_factor, row_lse[:, None], MASKED,
        )  # fmt: skip
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        if rng_state is not None:
            stays = kept(rng_state, batch_head, rows, j0, threshold, BLOCK_N, False)
            dp = tl.where(stays, dp * keep_scale, 0.0)
        ds = p * (dp - row_delta[:, None])
        if dbias is not None:
            tile = dbias + tl.cast(i0, tl.int64) * dbias_stride_q + j0
            tl.store(tile + (i - i0) * dbias_stride_q + (j - j0), ds, mask=(i < queries) & (j < keys))
        if SLOPES:
            slope_part += tl.sum(ds * tl.abs(i + (keys - queries) - j).to(tl.float32), 1)
        if cap is not None:
            ds = ds * (1.0 - curve * curve)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq, slope_part


@triton.jit(do_not_specialize=SIZES)
def attention_backward_queries(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
    dq,
    dbias,
    slope_parts,
    cu_seqlens_q,
    cu_seqlens_k,
    seqused_k,
    leftpad_k,
    bias,
    slopes,
    rng_state,
    q_stride_b,
    q_stride_s,
    q_stride_h,
    k_stride_b,
    k_stride_s,
    k_stride_h,
    v_stride_b,
    v_stride_s,
    v_stride_h,
    do_stride_b,
    do_stride_s,
    do_stride_h,
    dq_stride_b,
    dq_stride_s,
    dq_stride_h,
    row_stride_b,
    row_stride_h,
    bias_stride_b,
    bias_stride_h,
    bias_stride_q,
    bias_stride_k,
    dbias_stride_b,
    dbias_stride_h,
    dbias_stride_q,
    slope_parts_stride,
    slopes_stride_b,
    blocks,
    sequences,
    heads,
    group,
    span,
    max_queries,
    max_keys,
    left,
    right,
    scale,
    factor,
    cap,
    cap_factor,
    threshold,
    keep_scale,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """dq of one block of queries. The loops are those of the forward."""
    program = tl.program_id(0)
    step, batch_head = place_of(program, blocks, sequences * heads, span)
    block = blocks - 1 - step  # behind a diagonal the last block is the longest
    b, h = batch_head // heads, batch_head % heads
    b64, h64, hk64 = tl.cast(b, tl.int64), tl.cast(h, tl.int64), tl.cast(h // group, tl.int64)
    first_q, queries = sequence_rows(cu_seqlens_q, b, max_queries)
    first_k, keys = key_rows(cu_seqlens_k, seqused_k, leftpad_k, b, max_keys)
    i0 = block * BLOCK_M
    want_slopes: tl.constexpr = slope_parts is not None
    if i0 >= queries:
        return
    row_q = tl.cast(first_q + i0, tl.int64)
    row_k = tl.cast(first_k, tl.int64)
    q_base = q + b64 * q_stride_b + row_q * q_stride_s + h64 * q_stride_h
    do_base = dout + b64 * do_stride_b + row_q * do_stride_s + h64 * do_stride_h
    k_base = k + b64 * k_stride_b + row_k * k_stride_s + hk64 * k_stride_h
    v_base = v + b64 * v_stride_b + row_k * v_stride_s + hk64 * v_stride_h
    tile_q = load_tile(q_base, queries - i0, q_stride_s, DIM, BLOCK_M, BLOCK_D, True)
    tile_do = load_tile(do_base, queries - i0, do_stride_s, DIM_V, BLOCK_M, BLOCK_DV, True)
    rows = tl.arange(0, BLOCK_M)
    to_row = b64 * row_stride_b + h64 * row_stride_h + row_q
    row_lse = tl.load(lse_log2 + to_row + rows, mask=rows < queries - i0, other=float("inf"))
    row_delta = tl.load(delta + to_row + rows, mask=rows < queries - i0, other=0.0)
    bias_base = bias
    if bias is not None:
        bias_base = bias + b64 * bias_stride_b + h64 * bias_stride_h
    dbias_base = dbias
    if dbias is not None:
        dbias_base = dbias + b64 * dbias_stride_b + h64 * dbias_stride_h
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + b64 * slopes_stride_b + h) * LOG2_E

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    slope_part = tl.zeros((BLOCK_M,), tl.float32)
    begin, whole_begin, whole_end, end = key_runs(i0, queries, keys, left, right, BLOCK_M, BLOCK_N)
    if left is not None:
        acc, slope_part = _add_keys(
            acc, slope_part, tile_q, tile_do, row_lse, row_delta, k_base, v_base, k_stride_s, v_stride_s,
            begin, whole_begin, i0, queries, keys, left, right, bias_base, dbias_base, dbias_stride_q,
            bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head, threshold,
            keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, want_slopes, True,
        )  # fmt: skip
    acc, slope_part = _add_keys(
        acc, slope_part, tile_q, tile_do, row_lse, row_delta, k_base, v_base, k_stride_s, v_stride_s,
        whole_begin, whole_end, i0, queries, keys, left, right, bias_base, dbias_base, dbias_stride_q,
        bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head, threshold,
        keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, want_slopes, False,
    )  # fmt: skip
    if (right is not None) or (not EVEN_K):
        acc, slope_part = _add_keys(
            acc, slope_part, tile_q, tile_do, row_lse, row_delta, k_base, v_base, k_stride_s, v_stride_s,
            whole_end, end, i0, queries, keys, left, right, bias_base, dbias_base, dbias_stride_q,
            bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head, threshold,
            keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, want_slopes, True,
        )  # fmt: skip
    dq_base = dq + b64 * dq_stride_b + row_q * dq_stride_s + h64 * dq_stride_h
    store_tile(dq_base, acc * scale, queries - i0, dq_stride_s, DIM, BLOCK_M, BLOCK_D)
    if want_slopes:
        tl.store(slope_parts + tl.cast(batch_head, tl.int64) * slope_parts_stride + block, -tl.sum(slope_part, 0))
