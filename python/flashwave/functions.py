"""The functions of flash-attn 2, with its signatures, shapes and conventions, and keyword-only extensions.

Extensions of all but the cache function: `bias` (an additive term that broadcasts to (batch, heads, seqlen_q,
seqlen_k)), `sinks` ((heads,), a logit that joins every row's softmax; other libraries' names for it are `s_aux` and
`learnable_sink`), `return_lse` (also returns the log-sum-exp; it is differentiable), `out` (memory for the result,
where no gradient is needed), and v's head dimension may differ.
As in flash-attn the log-sum-exp of a row that sees no key is +inf; `flashwave.attention` reports -inf.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from .attention import (
    autocast,
    check_tensor,
    check_tensors,
    checked_out,
    draw_rng_state,
    dropout_of,
    index_tensor,
    make_problem,
    mask_of,
    whole_number,
)
from .autograd import append_step, attend, cached, dense, is_differentiated, plain, refuse_derivatives, varlen
from .errors import FlashwaveError, InvalidArgument
from .problem import FORWARD_FIELDS, Problem

Tensor = torch.Tensor
_is_compiling, _any_autocast = torch.compiler.is_compiling, torch._C._is_any_autocast_enabled


def _lse_as_flash_attn(lse: Tensor) -> Tensor:
    return torch.where(lse == -torch.inf, torch.inf, lse)


def _run(
    problem: Problem, return_attn_probs: bool, return_lse: bool, out: Tensor | None, without_dropout: bool = False
) -> Any:
    """out, (out, lse) or (out, lse, S_dmask). without_dropout: S_dmask also where nothing is dropped."""
    if not return_attn_probs and not return_lse:
        return attend(problem, checked_out(out, problem), False)[0]
    wanted = return_attn_probs and (problem.dropout_p > 0.0 or without_dropout)
    result, lse, probs = attend(problem, checked_out(out, problem), True, wanted)
    lse = _lse_as_flash_attn(lse)
    if not return_attn_probs:
        return result, lse
    if not wanted or probs.numel() == 0:  # flash-attn 2 computes the matrix only for tests of dropout
        return result, lse, result.new_empty((0,))
    # exp(s - max of the row), negative where dropped: flash-attn's scaling of the matrix
    largest = probs.abs().amax(dim=-1, keepdim=True)
    return result, lse, (probs / torch.where(largest == 0, 1.0, largest)).to(result.dtype)


def _one_sink(sinks: Tensor | None, s_aux: Tensor | None, learnable_sink: Tensor | None) -> Tensor | None:
    """The one of the names under which other libraries know attention sinks that is given."""
    given = [sink for sink in (sinks, s_aux, learnable_sink) if sink is not None]
    if len(given) > 1:
        raise InvalidArgument("sinks, s_aux and learnable_sink are names of one argument: give one of them")
    return given[0] if given else None


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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """softmax(q k^T * softmax_scale) v of dense tensors, with gradients.

    Fewer heads of k and v than of q are shared (grouped-query attention): nheads must be a multiple of nheads_k, and
    head h of q reads head h // (nheads / nheads_k) of k and v. float16, bfloat16, float32 and float64; any head_dim up
    to 512. CPU tensors and those of any GPU; docs/python.md says what computes where.

    Arguments:
        q: (batch_size, seqlen_q, nheads, head_dim)
        k: (batch_size, seqlen_k, nheads_k, head_dim)
        v: (batch_size, seqlen_k, nheads_k, head_dim_v)
        dropout_p: probability with which a weight is dropped; 0 in evaluation. Below 2^-16, what the mask can tell
            apart, it counts as 0. Seed and offset come from torch's generator of the device.
        softmax_scale: factor of the scores; the default is 1 / sqrt(head_dim). A number; a tensor counts as its value
            and must not require a gradient.
        causal: a query sees no key behind its own place. The last query stands at the last key, also where there are
            more keys than queries, or fewer:
                seqlen_q 2, seqlen_k 5:   1 1 1 1 0        seqlen_q 5, seqlen_k 2:   0 0
                                          1 1 1 1 1                                  0 0
                                                                                     0 0
                                                                                     1 0
                                                                                     1 1
            A row that sees no key is 0.
        window_size: (left, right). Query i sees keys from i + seqlen_k - seqlen_q - left to
            i + seqlen_k - seqlen_q + right; -1 is no limit.
        softcap: where above 0, scores become softcap * tanh(score / softcap).
        alibi_slopes: (nheads,) or (batch_size, nheads). The bias -slope * |i + seqlen_k - seqlen_q - j| is added to
            the score of query i and key j. Has a gradient.
        deterministic: the same bits of the gradient of q on GPUs, a little slower. Everything else, and everything on
            CPUs, is deterministic anyway.
        return_attn_probs: also return the log-sum-exp and, with dropout, the matrix of weights (for tests only).
        bias: an additive term that broadcasts to (batch_size, nheads, seqlen_q, seqlen_k); -inf hides a key. Has a
            gradient.
        sinks: (nheads,), a logit per head that joins every row's softmax and brings no value. Has a gradient. `s_aux`
            and `learnable_sink` are other libraries' names for it.
        return_lse: also return the log-sum-exp, which has a gradient.
        out: memory for the result, where no gradient is needed.

    Returns:
        out: (batch_size, seqlen_q, nheads, head_dim_v).
        softmax_lse, with return_attn_probs or return_lse: (batch_size, nheads, seqlen_q), float32. The log-sum-exp of
            each row of scores, scaled and with everything that was added; +inf where a row sees no key.
        S_dmask, with return_attn_probs: the weights, negative where dropped; empty without dropout.
    """
    if s_aux is not None or learnable_sink is not None:
        sinks = _one_sink(sinks, s_aux, learnable_sink)
    if not (deterministic or return_attn_probs or return_lse or _is_compiling()) and (
        bias is sinks is alibi_slopes is out is None
    ):
        try:
            if _any_autocast():
                q, k, v = autocast(q, k, v)
            numbers = (softmax_scale is None or type(softmax_scale) is float) and type(softcap) is float
            if numbers and window_size == (-1, -1) and not (softcap or dropout_p):
                return plain(q, k, v, softmax_scale, bool(causal))
            mask = mask_of(softmax_scale, causal, window_size, softcap)
            if not dropout_p:
                return dense(q, k, v, mask)
            dropout_p = dropout_of(dropout_p)
            return dense(q, k, v, mask, draw_rng_state(q) if dropout_p > 0.0 else None, dropout_p)
        except (AttributeError, TypeError, RuntimeError):
            check_tensors(q=q, k=k, v=v)
            raise
    mask = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, bias, sinks
    return _run(make_problem(*autocast(q, k, v), *mask), return_attn_probs, return_lse, out)


def _documented(function: Any) -> Any:
    """Fills in what a docstring takes from that of flash_attn_func: {options} and {results}."""
    known = flash_attn_func.__doc__
    if known is not None:  # Python runs without -OO
        options = known[known.index("dropout_p:") : known.index("Returns:")].rstrip()
        results = known[known.index("The log-sum-exp of\n") :].rstrip()
        function.__doc__ = function.__doc__.replace("{options}", options).replace("{results}", results)
    return function


@_documented
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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """`flash_attn_func` of q, k and v in one tensor, whose gradient comes in one tensor, too.

    Quicker than taking the three apart where they were computed together: nothing is copied, and the backward does not
    put three gradients into one.

    Arguments:
        qkv: (batch_size, seqlen, 3, nheads, head_dim)
        {options}

    Returns:
        out: (batch_size, seqlen, nheads, head_dim).
        softmax_lse, with return_attn_probs or return_lse: (batch_size, nheads, seqlen), float32. {results}
    """
    options = dict(locals())
    _check_packed("qkv", qkv, 3, 5)
    return flash_attn_func(*options.pop("qkv").unbind(2), **options)


@_documented
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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """`flash_attn_func` of k and v in one tensor, whose gradient comes in one tensor, too.

    nheads must be a multiple of nheads_k: head h of q reads head h // (nheads / nheads_k) of k and v.

    Arguments:
        q: (batch_size, seqlen_q, nheads, head_dim)
        kv: (batch_size, seqlen_k, 2, nheads_k, head_dim)
        {options}

    Returns:
        out: (batch_size, seqlen_q, nheads, head_dim).
        softmax_lse, with return_attn_probs or return_lse: (batch_size, nheads, seqlen_q), float32. {results}
    """
    options = dict(locals())
    _check_packed("kv", kv, 2, 5)
    return flash_attn_func(options.pop("q"), *options.pop("kv").unbind(2), **options)


@_documented
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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    seqused_k: Tensor | None = None,
) -> Any:
    """`flash_attn_func` of sequences of different lengths, packed one after the other without padding.

    Arguments:
        q: (total_q, nheads, head_dim), total_q rows of all sequences
        k: (total_k, nheads_k, head_dim), or (num_blocks, page_block_size, nheads_k, head_dim) with block_table
        v: as k, with head_dim_v
        cu_seqlens_q: (batch_size + 1,), integers: sequence b has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q.
            Rows of no sequence are 0 in the result.
        cu_seqlens_k: the same of k and v.
        max_seqlen_q, max_seqlen_k: the longest sequences. They say how much work there may be; what they are must be
            at least what the offsets say.
        {options}
        block_table: (batch_size, blocks), integers: the pages of each sequence, of any size. k and v are then a cache,
            and cu_seqlens_k gives lengths only. Has no gradient.
        seqused_k: (batch_size,), integers: so many keys of each sequence are used.

    Returns:
        out: (total_q, nheads, head_dim_v).
        softmax_lse, with return_attn_probs or return_lse: (nheads, total_q), float32. {results}
    """
    if s_aux is not None or learnable_sink is not None:
        sinks = _one_sink(sinks, s_aux, learnable_sink)
    if not (dropout_p or deterministic or return_attn_probs or return_lse or _is_compiling()) and (
        bias is sinks is alibi_slopes is out is block_table is seqused_k is None
        and not (cu_seqlens_q is None or cu_seqlens_k is None)
    ):
        try:
            if _any_autocast():
                q, k, v = autocast(q, k, v)
            if not is_differentiated(q, k, v):
                cu_q = index_tensor("cu_seqlens_q", cu_seqlens_q)
                cu_k = index_tensor("cu_seqlens_k", cu_seqlens_k)
                max_q = max_seqlen_q if type(max_seqlen_q) is int else whole_number("max_seqlen_q", max_seqlen_q)
                max_k = max_seqlen_k if type(max_seqlen_k) is int else whole_number("max_seqlen_k", max_seqlen_k)
                return varlen(q, k, v, cu_q, cu_k, max_q, max_k, mask_of(softmax_scale, causal, window_size, softcap))
        except AttributeError:
            check_tensors(q=q, k=k, v=v)
            raise
    check_tensors(q=q, k=k, v=v)
    mask = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, bias, sinks, None
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k
    problem = make_problem(*autocast(q, k, v), *mask, *lengths, block_table=block_table)
    return _run(problem, return_attn_probs, return_lse, out)


@_documented
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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """`flash_attn_varlen_func` of q, k and v in one tensor.

    Arguments:
        qkv: (total, 3, nheads, head_dim), total rows of all sequences
        cu_seqlens: (batch_size + 1,), integers: sequence b has rows cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        max_seqlen: the longest sequence.
        {options}

    Returns:
        out: (total, nheads, head_dim).
        softmax_lse, with return_attn_probs or return_lse: (nheads, total), float32. {results}
    """
    options = dict(locals())
    _check_packed("qkv", qkv, 3, 4)
    q, k, v = options.pop("qkv").unbind(1)
    rows, longest = options.pop("cu_seqlens"), options.pop("max_seqlen")
    return flash_attn_varlen_func(q, k, v, rows, rows, longest, longest, **options)


@_documented
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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """`flash_attn_varlen_func` of k and v in one tensor.

    Arguments:
        q: (total_q, nheads, head_dim)
        kv: (total_k, 2, nheads_k, head_dim)
        cu_seqlens_q: (batch_size + 1,), integers: sequence b has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q.
            Rows of no sequence are 0 in the result.
        cu_seqlens_k: the same of k and v.
        max_seqlen_q, max_seqlen_k: the longest sequences. They say how much work there may be; what they are must be
            at least what the offsets say.
        {options}

    Returns:
        out: (total_q, nheads, head_dim).
        softmax_lse, with return_attn_probs or return_lse: (nheads, total_q), float32. {results}
    """
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


def _same_length(q: Tensor, length: Any) -> Tensor:
    """One length for every sequence."""
    if not hasattr(length, "__index__"):
        raise InvalidArgument(f"cache_seqlens must be a whole number or a torch tensor, got {length!r}")
    return torch.full((q.shape[0],), whole_number("cache_seqlens", length), dtype=torch.int32, device=q.device)


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
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    out: Tensor | None = None,
) -> Any:
    """Attends to a cache of keys and values, after appending k and v to it in place where they are given.

    One call for a step of decoding, or of several new tokens: k and v are written behind the cache_seqlens[b] keys that
    sequence b has, turned by the rotary embedding first if there is one, and q attends to all of them. Has no gradient.
    Under autocast q, k and v take the dtype of the cache.

    Arguments:
        q: (batch_size, seqlen_q, nheads, head_dim)
        k_cache: (batch_size_cache, seqlen_cache, nheads_k, head_dim), or with block_table
            (num_blocks, page_block_size, nheads_k, head_dim), of any page size
        v_cache: as k_cache; its head_dim may be another
        k, v: (batch_size, seqlen_new, nheads_k, head_dim), to be appended; both or none
        rotary_cos, rotary_sin: (seqlen_ro, rotary_dim / 2). k is turned at positions cache_seqlens, cache_seqlens + 1,
            ...; q likewise if causal or with a window, else all of it at cache_seqlens. rotary_dim is at most head_dim.
        cache_seqlens: an int or (batch_size,) integers: keys in the cache before the append. None: all of them.
        cache_batch_idx: (batch_size,), integers: the row of the cache that a sequence uses. None: its own number.
        cache_leftpad: (batch_size,), integers: so many keys at the start of a sequence are left out.
        block_table: (batch_size, blocks), integers: the pages of each sequence.
        softmax_scale: factor of the scores; the default is 1 / sqrt(head_dim).
        causal: a query sees no key behind its own place. The last query stands at the last key (after the append).
        window_size: (left, right) around a query's own place; -1 is no limit.
        softcap: where above 0, scores become softcap * tanh(score / softcap).
        rotary_interleaved: pairs are (2i, 2i + 1) (GPT-J), else (i, i + rotary_dim / 2) (GPT-NeoX).
        alibi_slopes: (nheads,) or (batch_size, nheads), as in `flash_attn_func`.
        num_splits: into so many parts keys are split, to be worked on at once; 0: the library chooses.
        return_softmax_lse: also return the log-sum-exp.
        bias, sinks (s_aux, learnable_sink), out: as in `flash_attn_func`.

    Returns:
        out: (batch_size, seqlen_q, nheads, head_dim_v).
        softmax_lse, with return_softmax_lse: (batch_size, nheads, seqlen_q), float32; +inf where a row sees no key.
    """
    if s_aux is not None or learnable_sink is not None:
        sinks = _one_sink(sinks, s_aux, learnable_sink)
    if k is not None and cache_seqlens is None:
        raise InvalidArgument("cache_seqlens must be given with k: it says where the new keys go")
    try:
        if _any_autocast() and torch.is_autocast_enabled(q.device.type):
            q = q.to(k_cache.dtype)
            k, v = (None if tensor is None else tensor.to(k_cache.dtype) for tensor in (k, v))
        if cache_seqlens is not None:
            if not isinstance(cache_seqlens, Tensor):
                cache_seqlens = _same_length(q, cache_seqlens)
            cache_seqlens = index_tensor("cache_seqlens", cache_seqlens)
        mask = mask_of(softmax_scale, causal, window_size, softcap)
        plain = cache_leftpad is cache_batch_idx is block_table is rotary_cos is rotary_sin is None
        if _is_compiling():
            direct = False
        elif is_differentiated(q, k_cache, v_cache, k, v):
            refuse_derivatives("flash_attn_with_kvcache", q, k_cache, v_cache, k, v)
            direct = False
        else:
            direct = alibi_slopes is bias is sinks is out is None and not return_softmax_lse
        if direct and plain and k is not None and v is not None and num_splits == 0 and mask[4] == 0.0:
            return append_step(q, k_cache, v_cache, k, v, cache_seqlens, mask)
        new_keys = k, v, rotary_cos, rotary_sin
        cache = (
            cache_seqlens,
            index_tensor("cache_leftpad", cache_leftpad),
            index_tensor("cache_batch_idx", cache_batch_idx),
            index_tensor("block_table", block_table),
        )
        num_splits = num_splits if type(num_splits) is int else whole_number("num_splits", num_splits)
        interleaved = bool(rotary_interleaved and rotary_cos is not None)
        if direct:
            return cached(q, k_cache, v_cache, new_keys, cache, mask, num_splits, interleaved)
        with torch.no_grad():
            terms = alibi_slopes, bias, sinks
            tensors = q, k_cache, v_cache
            problem = _cache_problem(tensors, new_keys, cache, mask, terms, num_splits, interleaved)
            result, lse, _ = attend(problem, checked_out(out, problem), return_softmax_lse)
    except InvalidArgument as error:
        raise InvalidArgument(_in_cache_words(str(error))) from None
    except (AttributeError, FlashwaveError):
        check_tensors(q=q, k_cache=k_cache, v_cache=v_cache)
        raise
    return (result, _lse_as_flash_attn(lse)) if return_softmax_lse else result


def _cache_problem(tensors: tuple, new_keys: tuple, cache: tuple, mask: tuple, terms: tuple, *rest: Any) -> Problem:
    """Of what flash_attn_with_kvcache has made of its arguments. rest: num_splits, interleaved."""
    scale, causal, left, right, softcap = mask
    slopes, bias, sinks = terms
    parts = 0.0, scale, causal, (left, right), softcap, slopes, False, bias, sinks, *[None] * 5, *cache, rest[0]
    problem = make_problem(*tensors, *parts)
    if all(part is None for part in new_keys):
        return problem
    return Problem(*problem[: len(FORWARD_FIELDS)], *new_keys, rest[1])
