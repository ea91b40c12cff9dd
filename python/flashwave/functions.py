"""The functions of flash-attn 2, with its signatures, shapes and conventions, and keyword-only extensions.

Extensions of all but the cache function: `bias` (an additive term that broadcasts to (batch, heads, seqlen_q,
seqlen_k)), `sinks` ((heads,), a logit that joins every row's softmax), `return_lse` (also returns the log-sum-exp; it
is differentiable), `out` (memory for the result, where no gradient is needed), and v's head dimension may differ.
As in flash-attn the log-sum-exp of a row that sees no key is +inf; `flashwave.attention` reports -inf.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from .attention import (
    attend_dense,
    autocast,
    check_tensor,
    check_tensors,
    checked_out,
    index_tensor,
    make_problem,
    mask_of,
    whole_number,
)
from .autograd import attend, cached, is_differentiated, refuse_derivatives, varlen
from .errors import InvalidArgument
from .problem import FORWARD_FIELDS, Problem

Tensor = torch.Tensor
_is_compiling, _any_autocast = torch.compiler.is_compiling, torch._C._is_any_autocast_enabled


def _lse_as_flash_attn(lse: Tensor) -> Tensor:
    return torch.where(lse == -torch.inf, torch.inf, lse)


def _run(problem: Problem, return_attn_probs: bool, return_lse: bool, out: Tensor | None) -> Any:
    """out, (out, lse) or (out, lse, S_dmask)."""
    if not return_attn_probs and not return_lse:
        return attend(problem, checked_out(out, problem), False)[0]
    dropped = return_attn_probs and problem.dropout_p > 0.0
    result, lse, probs = attend(problem, checked_out(out, problem), True, dropped)
    lse = _lse_as_flash_attn(lse)
    if not return_attn_probs:
        return result, lse
    if not dropped:  # flash-attn computes the matrix only for tests of dropout
        return result, lse, result.new_empty((0,))
    # exp(s - max of the row), negative where dropped: flash-attn's scaling of the matrix
    largest = probs.abs().amax(dim=-1, keepdim=True)
    return result, lse, (probs / torch.where(largest == 0, 1.0, largest)).to(result.dtype)


def _check_packed(name: str, tensor: Tensor, count: int, dims: int) -> None:
    check_tensor(name, tensor)
    if tensor.dim() != dims or tensor.shape[-3] != count:
        leading = "(batch, seqlen, " if dims == 5 else "(total, "
        raise InvalidArgument(f"{name} must be {leading}{count}, heads, dim), got shape {tuple(tensor.shape)}")


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """q (batch, seqlen_q, heads, dim), k and v (batch, seqlen_k, heads_k, dim) -> (batch, seqlen_q, heads, dim)."""
    if not (dropout_p or deterministic or return_attn_probs or return_lse or _is_compiling()) and (
        bias is sinks is alibi_slopes is out is None
    ):
        return attend_dense(q, k, v, softmax_scale, causal, window_size, softcap)
    problem = make_problem(
        *autocast(q, k, v),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        bias,
        sinks,
    )
    return _run(problem, return_attn_probs, return_lse, out)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """qkv (batch, seqlen, 3, heads, dim)."""
    options = dict(locals())
    _check_packed("qkv", qkv, 3, 5)
    return flash_attn_func(*options.pop("qkv").unbind(2), **options)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """q (batch, seqlen_q, heads, dim), kv (batch, seqlen_k, 2, heads_k, dim)."""
    options = dict(locals())
    _check_packed("kv", kv, 2, 5)
    return flash_attn_func(options.pop("q"), *options.pop("kv").unbind(2), **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    seqused_k: Tensor | None = None,
) -> Any:
    """q (total_q, heads, dim), k and v (total_k, heads_k, dim), or pages with block_table; lse is (heads, total_q)."""
    if not (dropout_p or deterministic or return_attn_probs or return_lse or _is_compiling()) and (
        bias is sinks is alibi_slopes is out is block_table is seqused_k is None
    ):
        try:
            if _any_autocast():
                q, k, v = autocast(q, k, v)
            if not is_differentiated(q, k, v):
                return varlen(
                    q,
                    k,
                    v,
                    index_tensor("cu_seqlens_q", cu_seqlens_q),
                    index_tensor("cu_seqlens_k", cu_seqlens_k),
                    max_seqlen_q if type(max_seqlen_q) is int else whole_number("max_seqlen_q", max_seqlen_q),
                    max_seqlen_k if type(max_seqlen_k) is int else whole_number("max_seqlen_k", max_seqlen_k),
                    *mask_of(softmax_scale, causal, window_size, softcap),
                )
        except AttributeError:
            check_tensors(q=q, k=k, v=v)
            raise
    check_tensors(q=q, k=k, v=v)
    q, k, v = autocast(q, k, v)
    problem = make_problem(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        bias,
        sinks,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_k=seqused_k,
        block_table=block_table,
    )
    return _run(problem, return_attn_probs, return_lse, out)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """qkv (total, 3, heads, dim)."""
    options = dict(locals())
    _check_packed("qkv", qkv, 3, 4)
    q, k, v = options.pop("qkv").unbind(1)
    rows, longest = options.pop("cu_seqlens"), options.pop("max_seqlen")
    return flash_attn_varlen_func(q, k, v, rows, rows, longest, longest, **options)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """q (total_q, heads, dim), kv (total_k, 2, heads_k, dim)."""
    options = dict(locals())
    _check_packed("kv", kv, 2, 4)
    return flash_attn_varlen_func(options.pop("q"), *options.pop("kv").unbind(1), **options)


# --------------------------------------------------------------------------------------------------------------- cache

# What the library calls the arguments of the cache function.
_CACHE_NAMES = {
    "seqused_k": "cache_seqlens",
    "leftpad_k": "cache_leftpad",
    "k": "k_cache",
    "v": "v_cache",
    "k_new": "k",
    "v_new": "v",
}


def _in_cache_words(message: str) -> str:
    return re.sub(r"\b(" + "|".join(_CACHE_NAMES) + r")\b", lambda found: _CACHE_NAMES[found[0]], message)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Any:
    """Attends to a cache, after appending k and v to it in place if they are given. Has no gradient.

    k_cache and v_cache (cache rows, seqlen_cache, heads_k, dim), or (pages, page_size, heads_k, dim) with block_table.
    Sequence b uses cache_seqlens[b] keys (all of the cache if None); with rotary_cos and rotary_sin, k and q are
    rotated at positions counted from there. Under autocast q, k and v take the dtype of the cache.
    """
    if k is not None and cache_seqlens is None:
        raise InvalidArgument("cache_seqlens must be given with k: it says where the new keys go")
    try:
        if _any_autocast() and torch.is_autocast_enabled(q.device.type):
            q = q.to(k_cache.dtype)
            k, v = (None if tensor is None else tensor.to(k_cache.dtype) for tensor in (k, v))
        if isinstance(cache_seqlens, int):
            cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
        new_keys = k, v, rotary_cos, rotary_sin
        cache = (
            index_tensor("cache_seqlens", cache_seqlens),
            index_tensor("cache_leftpad", cache_leftpad),
            index_tensor("cache_batch_idx", cache_batch_idx),
            index_tensor("block_table", block_table),
        )
        mask = mask_of(softmax_scale, causal, window_size, softcap)
        num_splits = num_splits if type(num_splits) is int else whole_number("num_splits", num_splits)
        interleaved = bool(rotary_interleaved and rotary_cos is not None)
        if _is_compiling():
            pass
        elif is_differentiated(q, k_cache, v_cache, k, v):
            refuse_derivatives("flash_attn_with_kvcache", q, k_cache, v_cache, k, v)
        elif alibi_slopes is bias is sinks is out is None and not return_softmax_lse:
            return cached(q, k_cache, v_cache, new_keys, cache, mask, num_splits, interleaved)
        with torch.no_grad():
            terms = alibi_slopes, bias, sinks
            problem = _cache_problem(q, k_cache, v_cache, new_keys, cache, mask, num_splits, interleaved, terms)
            result, lse, _ = attend(problem, checked_out(out, problem), return_softmax_lse)
    except InvalidArgument as error:
        raise InvalidArgument(_in_cache_words(str(error))) from None
    except AttributeError:
        check_tensors(q=q, k_cache=k_cache, v_cache=v_cache)
        raise
    return (result, _lse_as_flash_attn(lse)) if return_softmax_lse else result


def _cache_problem(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    new_keys: tuple,
    cache: tuple,
    mask: tuple,
    num_splits: int,
    interleaved: bool,
    terms: tuple,
) -> Problem:
    scale, causal, left, right, softcap = mask
    used, leftpad, rows, table = cache
    slopes, bias, sinks = terms
    problem = make_problem(
        q,
        k_cache,
        v_cache,
        0.0,
        scale,
        causal,
        (left, right),
        softcap,
        slopes,
        False,
        bias,
        sinks,
        seqused_k=used,
        leftpad_k=leftpad,
        cache_batch_idx=rows,
        block_table=table,
        num_splits=num_splits,
    )
    if all(part is None for part in new_keys):
        return problem
    return Problem(*problem[: len(FORWARD_FIELDS)], *new_keys, interleaved)
