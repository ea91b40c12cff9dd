"""The forward kernel: one program per block of queries of a head, keys in up to three runs of blocks.

Only the first run (a window's left edge) and the last (the diagonal, the end of the keys) look at a mask; the blocks in
between are seen whole by every query of the program.
"""

import triton.language as tl

import triton

from .scores import (
    LOG2_E,
    SIZES,
    from_log2,
    kept,
    key_rows,
    key_runs,
    load_tile,
    place_of,
    scores,
    sequence_rows,
    store_tile,
    visible,
)


@triton.jit
def _attend(
    acc,
    total,
    top,
    q,
    k_base,
    v_base,
    stride_k,
    stride_v,
    first,
    last,
    i0,
    i,
    queries,
    keys,
    left,
    right,
    bias,
    bias_stride_q,
    bias_stride_k,
    slope,
    factor,
    cap,
    cap_factor,
    rng_state,
    batch_head,
    threshold,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds the keys first .. last - 1 to the running (sum of weighted v, sum of weights, maximum)."""
    modified: tl.constexpr = (cap is not None) or ((bias is not None) or (slope is not None))
    for j0 in range(first, last, BLOCK_N):
        k = load_tile(k_base + tl.cast(j0, tl.int64) * stride_k, keys - j0, stride_k, DIM, BLOCK_N, BLOCK_D, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        j = j0 + tl.arange(0, BLOCK_N)
        # The largest product times the factor, rather than the largest of scaled ones: scaling then is part of the
        # subtraction. The launcher sees to it that the factor is positive.
        rest = factor
        if modified:
            s, _ = scores(
                s, i[:, None], j[None, :], i0, j0, queries, keys, bias, bias_stride_q, bias_stride_k, slope, factor,
                cap, cap_factor,
            )  # fmt: skip
            rest = 1.0
        if MASKED:
            s = tl.where(visible(i[:, None], j[None, :], queries, keys, left, right), s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1) * rest)
        # Where nothing was seen yet every term is exp2(-inf), whatever is subtracted.
        base = now
        if MASKED or bias is not None:
            base = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp2(s * rest - base[:, None])
        rescale = tl.exp2(top - base)
        total = total * rescale + tl.sum(p, 1)
        if rng_state is not None:
            p = tl.where(kept(rng_state, batch_head, i, j0, threshold, BLOCK_N, False), p, 0.0)
        v = load_tile(v_base + tl.cast(j0, tl.int64) * stride_v, keys - j0, stride_v, DIM_V, BLOCK_N, BLOCK_DV, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        top = now
    return acc, total, top


@triton.jit(do_not_specialize=SIZES)
def attention_forward(
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    seqused_k,
    leftpad_k,
    bias,
    slopes,
    sinks,
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
    o_stride_b,
    o_stride_s,
    o_stride_h,
    lse_stride_b,
    lse_stride_h,
    bias_stride_b,
    bias_stride_h,
    bias_stride_q,
    bias_stride_k,
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
    sign,
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
    EVEN_K: tl.constexpr,  # max_keys is every sequence's number of keys, and a multiple of BLOCK_N
):
    program = tl.program_id(0)
    step, batch_head = place_of(program, blocks, sequences * heads, span)
    block = blocks - 1 - step  # behind a diagonal the last block is the longest
    b, h = batch_head // heads, batch_head % heads
    b64, h64, hk64 = tl.cast(b, tl.int64), tl.cast(h, tl.int64), tl.cast(h // group, tl.int64)
    first_q, queries = sequence_rows(cu_seqlens_q, b, max_queries)
    first_k, keys = key_rows(cu_seqlens_k, seqused_k, leftpad_k, b, max_keys)
    i0 = block * BLOCK_M
    if i0 >= queries:
        return
    i = i0 + tl.arange(0, BLOCK_M)

    q_base = q + b64 * q_stride_b + tl.cast(first_q + i0, tl.int64) * q_stride_s + h64 * q_stride_h
    k_base = k + b64 * k_stride_b + tl.cast(first_k, tl.int64) * k_stride_s + hk64 * k_stride_h
    v_base = v + b64 * v_stride_b + tl.cast(first_k, tl.int64) * v_stride_s + hk64 * v_stride_h
    tile_q = load_tile(q_base, queries - i0, q_stride_s, DIM, BLOCK_M, BLOCK_D, True)
    if sign is not None:
        tile_q = (tile_q * sign).to(q.dtype.element_ty)
    bias_base = bias
    if bias is not None:
        bias_base = bias + b64 * bias_stride_b + h64 * bias_stride_h
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + b64 * slopes_stride_b + h) * LOG2_E

    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + h) * LOG2_E
        top = tl.zeros((BLOCK_M,), tl.float32) + sink
        total = tl.where(top == float("-inf"), 0.0, 1.0)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)

    begin, whole_begin, whole_end, end = key_runs(i0, queries, keys, left, right, BLOCK_M, BLOCK_N)
    if left is not None:
        acc, total, top = _attend(
            acc, total, top, tile_q, k_base, v_base, k_stride_s, v_stride_s, begin, whole_begin, i0, i, queries, keys,
            left, right, bias_base, bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head,
            threshold, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_N, True,
        )  # fmt: skip
    acc, total, top = _attend(
        acc, total, top, tile_q, k_base, v_base, k_stride_s, v_stride_s, whole_begin, whole_end, i0, i, queries, keys,
        left, right, bias_base, bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head,
        threshold, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_N, False,
    )  # fmt: skip
    if (right is not None) or (not EVEN_K):
        acc, total, top = _attend(
            acc, total, top, tile_q, k_base, v_base, k_stride_s, v_stride_s, whole_end, end, i0, i, queries, keys,
            left, right, bias_base, bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor, rng_state, batch_head,
            threshold, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_N, True,
        )  # fmt: skip

    empty = total == 0.0
    acc = acc * (keep_scale / tl.where(empty, 1.0, total))[:, None]
    o_base = out + b64 * o_stride_b + tl.cast(first_q + i0, tl.int64) * o_stride_s + h64 * o_stride_h
    store_tile(o_base, acc, queries - i0, o_stride_s, DIM_V, BLOCK_M, BLOCK_DV)
    if lse is not None:
        row_lse = tl.where(empty, float("-inf"), from_log2(top + tl.log2(tl.where(empty, 1.0, total))))
        at = lse + b64 * lse_stride_b + h64 * lse_stride_h + first_q + i
        tl.store(at, row_lse, mask=i < queries)
