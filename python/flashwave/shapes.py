"""The rules on shapes and devices of tensors, which the library cannot see: it is given sizes and strides only."""

from __future__ import annotations

from .backends.native.structs import Tensor, dtype_name
from .errors import InvalidArgument
from .problem import TENSOR_FIELDS, Problem

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INDICES = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "leftpad_k", "cache_batch_idx", "block_table")


def _rule(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidArgument(message)


def _check_shape(name: str, tensor: Tensor, expected: tuple, meaning: str) -> None:
    _rule(tuple(tensor.shape) == expected, f"{name} must be {meaning} = {expected}, got shape {tuple(tensor.shape)}")


def _check_types(problem: Problem) -> None:
    q = problem.q
    _rule(dtype_name(q.dtype) in _FLOATS, f"q must be float16, bfloat16, float32 or float64, got {q.dtype}")
    for name in TENSOR_FIELDS:
        tensor = getattr(problem, name)
        if tensor is None:
            continue
        _rule(
            str(getattr(tensor, "layout", "torch.strided")) == "torch.strided",
            f"{name} must be a dense tensor, got one of layout {getattr(tensor, 'layout', None)}",
        )
        there = tensor.device == q.device or (name == "rng_state" and str(tensor.device) == "cpu")
        _rule(there, f"{name} must be on the device of q, {q.device}, got {tensor.device}")
        if name in ("k", "v", "k_new", "v_new"):
            _rule(tensor.dtype == q.dtype, f"{name} must have the dtype of q, {q.dtype}, got {tensor.dtype}")
        elif name in _INDICES:
            _rule(dtype_name(tensor.dtype) == "int32", f"{name} must be int32, got {tensor.dtype}")
        elif name in ("rotary_cos", "rotary_sin"):
            _rule(
                tensor.dtype == q.dtype or dtype_name(tensor.dtype) == "float32",
                f"{name} must be float32 or have the dtype of q, {q.dtype}, got {tensor.dtype}",
            )


def _check_keys(problem: Problem, heads: int, dim: int) -> None:
    """k and v in whichever of the layouts the problem has."""
    k, v, batch = problem.k, problem.v, problem.batch
    if problem.block_table is not None:
        layout, leading = "(pages, page_size, heads_k, dim)", tuple(k.shape[:2])
        _rule(k.dim() == 4, f"k must be {layout} with block_table, got shape {tuple(k.shape)}")
        _rule(
            k.shape[0] > 0 and k.shape[1] > 0, f"k must hold at least one page with block_table, got {tuple(k.shape)}"
        )
        table = problem.block_table
        _rule(
            table.dim() == 2 and table.shape[0] == batch,
            f"block_table must be (batch, blocks) with batch = {batch}, got shape {tuple(table.shape)}",
        )
        room = table.shape[1] * k.shape[1]
        _rule(
            problem.max_seqlen_k <= room,
            f"block_table addresses {room} keys a sequence, fewer than the {problem.max_seqlen_k} asked for",
        )
    elif problem.cu_seqlens_k is not None:
        layout, leading = "(total_k, heads_k, dim)", tuple(k.shape[:1])
        _rule(k.dim() == 3, f"k must be {layout} with cu_seqlens_k, got shape {tuple(k.shape)}")
    else:
        layout, leading = "(batch, seqlen_k, heads_k, dim)", tuple(k.shape[:2])
        _rule(k.dim() == 4, f"k must be {layout}, got shape {tuple(k.shape)}")
        _rule(
            k.shape[0] == batch or problem.cache_batch_idx is not None,
            f"k must have the batch of q, {batch}, got {k.shape[0]} (only cache_batch_idx can choose among more rows)",
        )
        _rule(
            problem.max_seqlen_k == k.shape[1],
            f"max_seqlen_k must be the second extent of k, {k.shape[1]}, without cu_seqlens_k, "
            f"got {problem.max_seqlen_k}",
        )
    heads_k = k.shape[-2]
    _rule(k.shape[-1] == dim, f"k must have the head dimension of q, {dim}, got {k.shape[-1]}")
    _rule(
        heads_k > 0 and heads % heads_k == 0,
        f"the heads of q must be a multiple of the heads of k, got {heads} and {heads_k}",
    )
    _rule(v.dim() == k.dim(), f"v must have as many dimensions as k, {k.dim()}, got shape {tuple(v.shape)}")
    _check_shape("v", v, (*leading, heads_k, v.shape[-1]), "as k but for the head dimension")
    if problem.k_new is None:
        _rule(problem.v_new is None, "v_new needs k_new")
        return
    _rule(problem.v_new is not None, "k_new needs v_new")
    seqlen_new = problem.k_new.shape[1] if problem.k_new.dim() == 4 else -1
    _check_shape("k_new", problem.k_new, (batch, seqlen_new, heads_k, dim), "(batch, seqlen_new, heads_k, dim)")
    _check_shape(
        "v_new", problem.v_new, (batch, seqlen_new, heads_k, v.shape[-1]), "(batch, seqlen_new, heads_k, dim_v)"
    )


def _check_rotary(problem: Problem, dim: int) -> None:
    cos, sin = problem.rotary_cos, problem.rotary_sin
    if cos is None or sin is None:
        _rule(cos is None and sin is None, "rotary_cos and rotary_sin must be given together")
        return
    _rule(problem.k_new is not None, "rotary_cos needs k and v to append: rotation is part of appending to the cache")
    _rule(cos.dim() == 2, f"rotary_cos must be (positions, rotary_dim / 2), got shape {tuple(cos.shape)}")
    _check_shape("rotary_sin", sin, tuple(cos.shape), "of the shape of rotary_cos")
    _rule(
        2 * cos.shape[1] <= dim,
        f"rotary_cos must have at most half the head dimension, {dim // 2} columns, got {cos.shape[1]}",
    )


def _check_score_terms(problem: Problem, heads: int) -> None:
    batch = problem.batch
    slopes, bias, sinks, rng_state = problem.alibi_slopes, problem.bias, problem.sinks, problem.rng_state
    if slopes is not None:
        _rule(
            tuple(slopes.shape) in ((heads,), (batch, heads)),
            f"alibi_slopes must be (heads,) = ({heads},) or (batch, heads) = ({batch}, {heads}), "
            f"got shape {tuple(slopes.shape)}",
        )
    if sinks is not None:
        _check_shape("sinks", sinks, (heads,), "(heads,)")
    if bias is not None:
        full = (batch, heads, problem.max_seqlen_q, problem.max_seqlen_k)
        _rule(
            bias.dim() == 4 and all(n in (1, m) for n, m in zip(bias.shape, full)),
            f"bias must broadcast to (batch, heads, seqlen_q, seqlen_k) = {full}, got shape {tuple(bias.shape)}",
        )
    if problem.dropout_p > 0.0:
        _rule(rng_state is not None, "rng_state must be given with dropout_p > 0")
        _check_shape("rng_state", rng_state, (2,), "(seed, offset)")
        _rule(
            dtype_name(rng_state.dtype) in ("int64", "uint64"),
            f"rng_state must be int64, (seed, offset), got {rng_state.dtype}",
        )


def check(problem: Problem) -> None:
    """Raises InvalidArgument for the first rule broken. What the library checks itself is left to it."""
    q, batch = problem.q, problem.batch
    if problem.cu_seqlens_q is not None:
        _rule(q.dim() == 3, f"q must be (total_q, heads, dim) with cu_seqlens_q, got shape {tuple(q.shape)}")
        _rule(
            problem.cu_seqlens_q.dim() == 1 and batch >= 0,
            f"cu_seqlens_q must be (batch + 1), got shape {tuple(problem.cu_seqlens_q.shape)}",
        )
    else:
        _rule(q.dim() == 4, f"q must be (batch, seqlen_q, heads, dim), got shape {tuple(q.shape)}")
        _rule(
            problem.max_seqlen_q == q.shape[1],
            f"max_seqlen_q must be the second extent of q, {q.shape[1]}, without cu_seqlens_q, "
            f"got {problem.max_seqlen_q}",
        )
    heads, dim = q.shape[-2], q.shape[-1]
    _check_types(problem)
    _check_keys(problem, heads, dim)
    if problem.cu_seqlens_k is not None:
        _check_shape("cu_seqlens_k", problem.cu_seqlens_k, (batch + 1,), "(batch + 1)")
    for name in ("seqused_k", "leftpad_k", "cache_batch_idx"):
        tensor = getattr(problem, name)
        if tensor is not None:
            _check_shape(name, tensor, (batch,), "(batch)")
    _check_rotary(problem, dim)
    _check_score_terms(problem, heads)
