"""The backward kernels: delta, then dk and dv by blocks of keys, then dq by blocks of queries.

No program adds to what another one writes, so there are no atomics and the results do not depend on any order. The
price is that scores are computed twice, 7 products instead of 5.
"""

import triton.language as tl

import triton

from .scores import (
    LOG2_E,
    SIZES,
    in_log2,
    kept,
    key_rows,
    load_tile,
    place_of,
    scores,
    sequence_rows,
    store_tile,
    visible,
)


@triton.jit(do_not_specialize=SIZES)
def row_terms(
    out,
    dout,
    lse,
    dlse,
    lse_log2,
    delta,
    sinks,
    sink_parts,
    cu_seqlens_q,
    o_stride_b,
    o_stride_s,
    o_stride_h,
    do_stride_b,
    do_stride_s,
    do_stride_h,
    lse_stride_b,
    lse_stride_h,
    lse_stride_s,
    dlse_stride_b,
    dlse_stride_h,
    dlse_stride_s,
    row_stride_b,
    row_stride_h,
    blocks,
    heads,
    max_queries,
    DIM_V: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Per query: delta and the lse in units of log2(e), +inf where the row sees nothing, which makes every P 0.

    With sink_parts also the block's share of the sink's gradient.
    """
    program = tl.program_id(0)
    block, batch_head = program % blocks, program // blocks
    b, h = batch_head // heads, batch_head % heads
    b64, h64 = tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    first, queries = sequence_rows(cu_seqlens_q, b, max_queries)
    i0 = block * BLOCK_M
    i = i0 + tl.arange(0, BLOCK_M)
    exists = i < queries
    rows = (first + i).to(tl.int64)
    row0 = tl.cast(first + i0, tl.int64)
    o_base = out + b64 * o_stride_b + row0 * o_stride_s + h64 * o_stride_h
    do_base = dout + b64 * do_stride_b + row0 * do_stride_s + h64 * do_stride_h
    o = load_tile(o_base, queries - i0, o_stride_s, DIM_V, BLOCK_M, BLOCK_DV, True)
    do = load_tile(do_base, queries - i0, do_stride_s, DIM_V, BLOCK_M, BLOCK_DV, True)
    row_delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    if dlse is not None:
        at = dlse + b64 * dlse_stride_b + h64 * dlse_stride_h + rows * dlse_stride_s
        row_delta -= tl.load(at, mask=exists, other=0.0)
    at = lse + b64 * lse_stride_b + h64 * lse_stride_h + rows * lse_stride_s
    row_lse = tl.load(at, mask=exists, other=float("-inf"))
    empty = row_lse == float("-inf")
    row_delta = tl.where(empty, 0.0, row_delta)
    to_row = b64 * row_stride_b + h64 * row_stride_h + rows
    tl.store(lse_log2 + to_row, tl.where(empty, float("inf"), in_log2(row_lse)), mask=exists)
    tl.store(delta + to_row, row_delta, mask=exists)
    if sink_parts is not None:
        share = tl.exp2((tl.load(sinks + h) - tl.where(empty, float("inf"), row_lse)) * LOG2_E)
        tl.store(sink_parts + program, -tl.sum(share * row_delta, 0))


@triton.jit
def _pairs(
    left_tile,
    right_tile,
    i,
    j,
    i0,
    j0,
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
    row_lse,
    MASKED: tl.constexpr,
):
    """P of pairs and the tanh of the softcap. left_tile @ right_tile are the products of q and k, in either order."""
    modified: tl.constexpr = (cap is not None) or ((bias is not None) or (slope is not None))
    s = tl.dot(left_tile, right_tile, input_precision="ieee")
    curve = s
    if modified:
        s, curve = scores(
            s, i, j, i0, j0, queries, keys, bias, bias_stride_q, bias_stride_k, slope, factor, cap, cap_factor
        )  # fmt: skip
        log_p = s - row_lse
        if bias is not None:  # next to a large one lse is coarse: above 0 by numbers that exp2 turns into inf
            log_p = tl.where(log_p > 0, 0.0, log_p)
        p = tl.exp2(log_p)
    else:
        p = tl.exp2(s * factor - row_lse)
    if MASKED:
        p = tl.where(visible(i, j, queries, keys, left, right), p, 0.0)
    return p, curve


@triton.jit
def _add_queries(
    dk,
    dv,
    k,
    v,
    q_base,
    do_base,
    lse_log2,
    delta,
    q_stride_h,
    do_stride_h,
    row_stride_h,
    bias_stride_h,
    stride_q,
    stride_do,
    first,
    last,
    group,
    j0,
    queries,
    keys,
    left,
    right,
    bias,
    bias_stride_q,
    bias_stride_k,
    slopes,
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
    GROUPED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds what queries first .. last - 1 of a group's heads give to dk and dv of the keys from j0 on, here in rows.

    Pointers are those of the group's first head, batch_head its number. One loop runs over the blocks of all heads:
    with a loop around it the compiler keeps the sums in memory.
    """
    j = (j0 + tl.arange(0, BLOCK_N))[:, None]
    rows_of_head = (last - first + BLOCK_M - 1) // BLOCK_M * BLOCK_M
    stop = last
    if GROUPED:
        stop = first + rows_of_head * group
    for step in range(first, stop, BLOCK_M):
        member = 0
        i0 = step
        if GROUPED:
            member = (step - first) // rows_of_head
            i0 = step - member * rows_of_head
        head64 = tl.cast(member, tl.int64)
        rows = i0 + tl.arange(0, BLOCK_M)
        i = rows[None, :]
        row_q = tl.cast(i0, tl.int64)
        q_at = q_base + head64 * q_stride_h + row_q * stride_q
        do_at = do_base + head64 * do_stride_h + row_q * stride_do
        lse_at = lse_log2 + head64 * row_stride_h + rows
        delta_at = delta + head64 * row_stride_h + rows
        bias_at = bias
        if bias is not None:
            bias_at = bias + head64 * bias_stride_h
        slope = slopes
        if slopes is not None:
            slope = tl.load(slopes + member) * LOG2_E
        q = load_tile(q_at, queries - i0, stride_q, DIM, BLOCK_M, BLOCK_D, MASKED)
        if MASKED:
            row_lse = tl.load(lse_at, mask=rows < queries, other=float("inf"))
        else:
            row_lse = tl.load(lse_at)
        p, curve = _pairs(
            k, tl.trans(q), i, j, i0, j0, queries, keys, left, right, bias_at, bias_stride_q, bias_stride_k, slope,
            factor, cap, cap_factor, row_lse[None, :], MASKED,
        )  # fmt: skip
        do = load_tile(do_at, queries - i0, stride_do, DIM_V, BLOCK_M, BLOCK_DV, MASKED)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        used = p
        if rng_state is not None:
            stays = kept(rng_state, batch_head + member, rows, j0, threshold, BLOCK_N, True)
            used = tl.where(stays, p, 0.0)
            dp = tl.where(stays, dp * keep_scale, 0.0)
        dv = tl.dot(used.to(do.dtype), do, dv, input_precision="ieee")
        if MASKED:
            row_delta = tl.load(delta_at, mask=rows < queries, other=0.0)
        else:
            row_delta = tl.load(delta_at)
        ds = p * (dp - row_delta[None, :])
        if cap is not None:
            ds = ds * (1.0 - curve * curve)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=SIZES)
def attention_backward_keys(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
    dk,
    dv,
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
    dk_stride_b,
    dk_stride_s,
    dk_stride_h,
    dv_stride_b,
    dv_stride_s,
    dv_stride_h,
    row_stride_b,
    row_stride_h,
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
    GROUPED: tl.constexpr,  # group > 1
    EVEN_Q: tl.constexpr,  # max_queries is every sequence's number of queries, and a multiple of BLOCK_M
):
    """dk and dv of one block of keys of a head of k, over all heads of q that read it."""
    program = tl.program_id(0)
    heads_k = heads // group
    block, batch_head_k = place_of(program, blocks, sequences * heads_k, span)
    b, hk = batch_head_k // heads_k, batch_head_k % heads_k
    b64, hk64 = tl.cast(b, tl.int64), tl.cast(hk, tl.int64)
    first_q, queries = sequence_rows(cu_seqlens_q, b, max_queries)
    first_k, keys = key_rows(cu_seqlens_k, seqused_k, leftpad_k, b, max_keys)
    j0 = block * BLOCK_N
    if j0 >= keys:
        return
    row_k = tl.cast(first_k + j0, tl.int64)
    row_q = tl.cast(first_q, tl.int64)
    k_base = k + b64 * k_stride_b + row_k * k_stride_s + hk64 * k_stride_h
    v_base = v + b64 * v_stride_b + row_k * v_stride_s + hk64 * v_stride_h
    tile_k = load_tile(k_base, keys - j0, k_stride_s, DIM, BLOCK_N, BLOCK_D, True)
    tile_v = load_tile(v_base, keys - j0, v_stride_s, DIM_V, BLOCK_N, BLOCK_DV, True)

    # Queries begin .. end - 1 hold all that see some key of the block; whole_begin .. whole_end - 1 see all of them.
    begin = 0
    end = queries
    if left is not None:
        end = tl.minimum(queries, tl.maximum(j0 + BLOCK_N - (keys - queries) + left, 0))
    whole_begin = begin
    if right is not None:
        begin = tl.maximum(j0 - (keys - queries) - right, 0) // BLOCK_M * BLOCK_M
        whole_begin = tl.maximum(j0 + BLOCK_N - 1 - (keys - queries) - right, 0)
        whole_begin = (tl.minimum(whole_begin, end) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
        whole_begin = tl.maximum(whole_begin, begin)
    whole_end = queries // BLOCK_M * BLOCK_M
    if left is not None:
        whole_end = tl.minimum(whole_end, tl.maximum(j0 - (keys - queries) + left + 1, 0) // BLOCK_M * BLOCK_M)
    whole_end = tl.maximum(whole_end, whole_begin)

    acc_k = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    acc_v = tl.zeros((BLOCK_N, BLOCK_DV), tl.float32)
    h64 = hk64 * group
    batch_head = b * heads + hk * group
    q_base = q + b64 * q_stride_b + row_q * q_stride_s + h64 * q_stride_h
    do_base = dout + b64 * do_stride_b + row_q * do_stride_s + h64 * do_stride_h
    to_row = b64 * row_stride_b + h64 * row_stride_h + row_q
    bias_base = bias
    if bias is not None:
        bias_base = bias + b64 * bias_stride_b + h64 * bias_stride_h
    slopes_base = slopes
    if slopes is not None:
        slopes_base = slopes + b64 * slopes_stride_b + h64
    if right is not None:
        acc_k, acc_v = _add_queries(
            acc_k, acc_v, tile_k, tile_v, q_base, do_base, lse_log2 + to_row, delta + to_row, q_stride_h, do_stride_h,
            row_stride_h, bias_stride_h, q_stride_s, do_stride_s, begin, whole_begin, group, j0, queries, keys, left,
            right, bias_base, bias_stride_q, bias_stride_k, slopes_base, factor, cap, cap_factor, rng_state, batch_head,
            threshold, keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, GROUPED, True,
        )  # fmt: skip
    acc_k, acc_v = _add_queries(
        acc_k, acc_v, tile_k, tile_v, q_base, do_base, lse_log2 + to_row, delta + to_row, q_stride_h, do_stride_h,
        row_stride_h, bias_stride_h, q_stride_s, do_stride_s, whole_begin, whole_end, group, j0, queries, keys, left,
        right, bias_base, bias_stride_q, bias_stride_k, slopes_base, factor, cap, cap_factor, rng_state, batch_head,
        threshold, keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, GROUPED, False,
    )  # fmt: skip
    if (left is not None) or (not EVEN_Q):
        acc_k, acc_v = _add_queries(
            acc_k, acc_v, tile_k, tile_v, q_base, do_base, lse_log2 + to_row, delta + to_row, q_stride_h, do_stride_h,
            row_stride_h, bias_stride_h, q_stride_s, do_stride_s, whole_end, end, group, j0, queries, keys, left,
            right, bias_base, bias_stride_q, bias_stride_k, slopes_base, factor, cap, cap_factor, rng_state, batch_head,
            threshold, keep_scale, DIM, DIM_V, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, GROUPED, True,
        )  # fmt: skip
    dk_base = dk + b64 * dk_stride_b + row_k * dk_stride_s + hk64 * dk_stride_h
    dv_base = dv + b64 * dv_stride_b + row_k * dv_stride_s + hk64 * dv_stride_h
    store_tile(dk_base, acc_k * scale, keys - j0, dk_stride_s, DIM, BLOCK_N, BLOCK_D)
    store_tile(dv_base, acc_v * keep_scale, keys - j0, dv_stride_s, DIM_V, BLOCK_N, BLOCK_DV)
