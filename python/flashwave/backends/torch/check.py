"""The rules this backend relies on. Values in device memory are not read: they are the caller's to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...problem import Problem


def checked(p: Problem) -> Problem:
    """The problem with its scale said outright. Raises ValueError, naming the argument, for one that would otherwise be
    computed wrongly or in part."""
    heads, heads_k = p.q.shape[-2], p.k.shape[-2]
    _require(heads_k > 0 and heads % heads_k == 0, f"q must have a multiple of k's heads, got {heads} and {heads_k}")
    _require(p.v.shape[:-1] == p.k.shape[:-1], "v must have the shape of k but for its last axis")
    _require(p.q.dtype == p.k.dtype == p.v.dtype, "q, k and v must have one dtype")
    if p.cu_seqlens_q is None:
        _require(p.max_seqlen_q == p.q.shape[1], "max_seqlen_q must be q's second extent without cu_seqlens_q")
    if p.cu_seqlens_k is None and p.block_table is None:
        _require(p.max_seqlen_k == p.k.shape[1], "max_seqlen_k must be k's second extent without cu_seqlens_k")
    if p.cache_batch_idx is not None:
        _require(p.block_table is None, "cache_batch_idx cannot be used with block_table: the table names the pages")
        _require(p.cu_seqlens_k is None, "cache_batch_idx cannot be used with cu_seqlens_k: packed keys have no rows")
    elif p.cu_seqlens_k is None and p.block_table is None:
        _require(p.k.shape[0] == p.batch, f"k must have a row for each of the {p.batch} sequences, got {p.k.shape[0]}")
    _require(p.window_left >= -1 and p.window_right >= -1, "window_left and window_right must be at least -1")
    _require(0 <= p.dropout_p < 1, f"dropout_p must be in [0, 1), got {p.dropout_p}")
    _require(p.dropout_p == 0 or p.rng_state is not None, "rng_state must be given with dropout_p > 0")
    _require(p.softcap >= 0, f"softcap must be at least 0, got {p.softcap}")
    _check_shapes(p, heads)
    _check_append(p)
    return p if p.softmax_scale is not None else p._replace(softmax_scale=p.q.shape[-1] ** -0.5)


def checked_backward(p: Problem) -> Problem:
    for name in ("block_table", "cache_batch_idx", "k_new", "v_new", "rotary_cos", "rotary_sin"):
        _require(getattr(p, name) is None, f"{name} cannot be used in a backward")
    return checked(p)


def _check_shapes(p: Problem, heads: int) -> None:
    if p.bias is not None:
        full = (p.batch, heads, p.max_seqlen_q, p.max_seqlen_k)
        fits = p.bias.dim() == 4 and all(x in (1, n) for x, n in zip(p.bias.shape, full))
        _require(fits, f"bias must have the extents {full} or 1, got {tuple(p.bias.shape)}")
    if p.alibi_slopes is not None:
        fits = tuple(p.alibi_slopes.shape) in ((heads,), (p.batch, heads))
        _require(fits, f"alibi_slopes must be ({heads},) or ({p.batch}, {heads}), got {tuple(p.alibi_slopes.shape)}")
    if p.sinks is not None:
        _require(tuple(p.sinks.shape) == (heads,), f"sinks must be ({heads},), got {tuple(p.sinks.shape)}")


def _check_append(p: Problem) -> None:
    _require((p.k_new is None) == (p.v_new is None), "k_new and v_new must be given together")
    _require((p.rotary_cos is None) == (p.rotary_sin is None), "rotary_cos and rotary_sin must be given together")
    if p.k_new is None:
        _require(p.rotary_cos is None, "rotary_cos needs k_new: rotation is part of appending to the cache")
        return
    _require(p.seqused_k is not None, "seqused_k must be given with k_new: it says where the new keys go")
    _require(p.cu_seqlens_k is None, "k_new cannot be used with cu_seqlens_k: packed keys have no room to grow")
    _require(p.k_new.dtype == p.k.dtype and p.v_new.dtype == p.v.dtype, "k_new and v_new must have the dtype of k")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
