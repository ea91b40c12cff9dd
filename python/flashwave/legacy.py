"""The functions of flash-attn 0.x and 1.x.

They differ from today's in one point of meaning: until flash-attn 2.1, `causal` aligned query 0 with key 0 ("top
left"), where now the last query is aligned with the last key. The two agree when a sequence has as many queries as
keys. For other lengths the functions here keep the old meaning, key j visible to query i iff j <= i:

* more keys than queries: keys from the number of queries on are seen by nobody and are left out;
* more queries than keys: queries from the number of keys on see every key; they are attended in a second call.

Returned softmax_lse is (batch, heads, longest sequence of queries), as it was, 0 beyond a sequence's end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashwave.attention import index_tensor
from flashwave.functions import flash_attn_varlen_func

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
    options = {
        "dropout_p": dropout_p,
        "softmax_scale": softmax_scale,
        "deterministic": deterministic,
        "return_attn_probs": return_attn_probs,
    }
    if causal and not _same(cu_seqlens_q, cu_seqlens_k):
        if return_attn_probs:
            raise NotImplementedError(
                "return_attn_probs: not for causal attention of sequences with different numbers of queries and keys"
            )
        return _top_left(q, k, v, cu_seqlens_q, cu_seqlens_k, options)
    result = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, **options
    )
    if not return_attn_probs:
        return result
    out, lse, probs = result
    return out, _padded_lse(lse, cu_seqlens_q, max_seqlen_q), probs


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
    if probs.numel() == 0:  # without dropout there is no matrix
        return out, lse, probs, probs
    first, others = probs[:batch_size0], probs[batch_size0:]
    return out, lse, first[:, :, :max_seqlen0, :max_seqlen0], others[:, :, :max_seqlen1, :max_seqlen1]


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _top_left(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, options: dict) -> Tensor:
    shared = torch.minimum(cu_seqlens_q.diff(), cu_seqlens_k.diff())
    first_q, later_q = _split_rows(cu_seqlens_q, shared)
    first_k, _ = _split_rows(cu_seqlens_k, shared)
    cu_shared = _offsets(shared)
    longest = int(shared.max())
    square = flash_attn_varlen_func(
        q[first_q], k[first_k], v[first_k], cu_shared, cu_shared, longest, longest, causal=True, **options
    )
    out = square.new_zeros(q.shape[0], *square.shape[1:]).index_copy(0, first_q, square)
    if later_q.numel() == 0:
        return out
    later = cu_seqlens_q.diff() - shared
    full = flash_attn_varlen_func(
        q[later_q],
        k,
        v,
        _offsets(later),
        cu_seqlens_k,
        int(later.max()),
        int(cu_seqlens_k.diff().max()),
        causal=False,
        **options,
    )
    return out.index_copy(0, later_q, full)


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
