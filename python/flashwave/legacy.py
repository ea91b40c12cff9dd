"""The functions of flash-attn 0.x and 1.x.

They differ from today's in one point of meaning: until flash-attn 2.1, `causal` aligned query 0 with key 0 ("top
left"), where now the last query is aligned with the last key. The two agree when a sequence has as many queries as
keys. For other lengths the functions here keep the old meaning, key j visible to query i iff j <= i:

* more keys than queries: keys from the number of queries on are seen by nobody and are left out;
* more queries than keys: queries from the number of keys on see every key; they are attended in a second call.

Returned softmax_lse is (batch, heads, longest sequence of queries), as it was, 0 beyond a sequence's end. S_dmask, with
return_attn_probs, is (batch, heads, longest queries, longest keys), with dropout and without: a row's weights over the
largest of them, negative where dropped, 0 where nothing is seen. (0.x gave it in the order of a kernel's threads.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashwave.attention import autocast, index_tensor, make_problem
from flashwave.functions import _run

__all__ = [
    "flash_attn_unpadded_func",
    "flash_attn_unpadded_kvpacked_func",
    "flash_attn_unpadded_qkvpacked_func",
    "flash_attn_unpadded_qkvpacked_split_func",
]


def flash_attn_unpadded_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
):
    """q (total_q, h, d), k and v (total_k, h, d). Returns out, or (out, softmax_lse, S_dmask)."""
    cu_seqlens_q = index_tensor("cu_seqlens_q", cu_seqlens_q)
    cu_seqlens_k = index_tensor("cu_seqlens_k", cu_seqlens_k)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    options = {
        "dropout_p": dropout_p,
        "softmax_scale": softmax_scale,
        "deterministic": deterministic,
        "return_attn_probs": return_attn_probs,
    }
    if causal and not _same(cu_seqlens_q, cu_seqlens_k):
        out, lse, probs = _top_left(q, k, v, *lengths, options)
    else:
        out, lse, probs = _attend(q, k, v, *lengths, causal, **options)
    return (out, _padded_lse(lse, cu_seqlens_q, max_seqlen_q), probs) if return_attn_probs else out


def flash_attn_unpadded_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
):
    """qkv (total, 3, h, d)."""
    rest = dropout_p, softmax_scale, causal, return_attn_probs, deterministic
    return flash_attn_unpadded_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *rest)


def flash_attn_unpadded_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
):
    """q (total_q, h, d), kv (total_k, 2, h, d)."""
    options = dict(locals())
    return flash_attn_unpadded_func(options.pop("q"), *options.pop("kv").unbind(1), **options)


def flash_attn_unpadded_qkvpacked_split_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen0: int,
    max_seqlen1: int,
    batch_size0: int,
    dropout_p: float,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
    deterministic: bool = False,
):
    """The first batch_size0 sequences are at most max_seqlen0 long, the others max_seqlen1. One call serves both.

    With return_attn_probs: (out, softmax_lse, S_dmask of the first sequences, S_dmask of the others).
    """
    longest = max(max_seqlen0, max_seqlen1)
    result = flash_attn_unpadded_qkvpacked_func(
        qkv, cu_seqlens, longest, dropout_p, softmax_scale, causal, return_attn_probs, deterministic
    )
    if not return_attn_probs:
        return result
    out, lse, probs = result
    first, others = probs[:batch_size0], probs[batch_size0:]
    return out, lse, first[:, :, :max_seqlen0, :max_seqlen0], others[:, :, :max_seqlen1, :max_seqlen1]


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    dropout_p: float,
    softmax_scale: float | None,
    deterministic: bool,
    return_attn_probs: bool,
):
    """(out, lse (heads, total_q), S_dmask); the last two None unless asked for."""
    problem = make_problem(
        *autocast(q, k, v),
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        deterministic=deterministic,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    if not return_attn_probs:
        return _run(problem, False, False, None), None, None
    out, lse, probs = _run(problem, True, True, None, without_dropout=True)
    if probs.numel() == 0:  # nothing is attended
        probs = out.new_zeros(cu_seqlens_q.shape[0] - 1, q.shape[1], max_seqlen_q, max_seqlen_k)
    return out, lse, probs


def _top_left(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    options: dict,
):
    """`_attend` with key j visible to query i iff j <= i."""
    shared = torch.minimum(cu_seqlens_q.diff(), cu_seqlens_k.diff())
    first_q, later_q = _split_rows(cu_seqlens_q, shared)
    first_k, _ = _split_rows(cu_seqlens_k, shared)
    cu_shared, longest = _offsets(shared), int(shared.max())
    square = _attend(q[first_q], k[first_k], v[first_k], cu_shared, cu_shared, longest, longest, True, **options)
    out = square[0].new_zeros(q.shape[0], *square[0].shape[1:]).index_copy(0, first_q, square[0])
    lse = probs = later = None
    if later_q.numel() > 0:
        rest = cu_seqlens_q.diff() - shared
        lengths = _offsets(rest), cu_seqlens_k, int(rest.max()), int(cu_seqlens_k.diff().max())
        later = _attend(q[later_q], k, v, *lengths, False, **options)
        out = out.index_copy(0, later_q, later[0])
    if options["return_attn_probs"]:
        lse = square[1].new_full((square[1].shape[0], q.shape[0]), torch.inf).index_copy(1, first_q, square[1])
        probs = square[2].new_zeros(shared.shape[0], q.shape[1], max_seqlen_q, max_seqlen_k)
        probs[:, :, :longest, :longest] = square[2]
        if later is not None:
            lse = lse.index_copy(1, later_q, later[1])
            for b, (start, count) in enumerate(zip(shared.tolist(), rest.tolist())):
                probs[b, :, start : start + count, : later[2].shape[3]] = later[2][b, :, :count]
    return out, lse, probs


def _offsets(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _split_rows(cu_seqlens: Tensor, lengths: Tensor):
    """Rows before, and from, position lengths[b] of each sequence."""
    row = torch.arange(int(cu_seqlens[-1]), device=cu_seqlens.device)
    sequence = torch.bucketize(row, cu_seqlens[1:].to(row.dtype), right=True)
    is_first = row - cu_seqlens[sequence] < lengths[sequence]
    return row[is_first], row[~is_first]


def _padded_lse(lse: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
    position = torch.arange(longest, device=lse.device)
    starts, lengths = cu_seqlens[:-1, None], cu_seqlens.diff()[:, None]
    inside = position < lengths
    rows = torch.where(inside, starts + position, 0)
    return torch.where(inside[:, None], lse[:, rows].transpose(0, 1), 0.0)
