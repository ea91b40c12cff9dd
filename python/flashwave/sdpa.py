"""`sdpa`: torch's scaled_dot_product_attention, with its signature, computed by flashwave on any torch."""

from __future__ import annotations

from typing import Any

import torch

from .attention import attention
from .errors import InvalidArgument

Tensor = torch.Tensor


def top_left(queries: int, keys: int) -> tuple[int, dict[str, Any]]:
    """torch's is_causal, which lets query i see keys 0 .. i, in our terms: how many keys to keep, and the mask of them.

    Ours is aligned to the last query and the last key.
    """
    if keys >= queries:
        return queries, {"causal": True}
    return keys, {"window": (-1, queries - keys)}


def bias_of(mask: Tensor, q: Tensor) -> Tensor:
    """A mask of torch's, True where a key is seen or a number to add, as numbers to add."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=q.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def _batched(x: Tensor, leading: tuple[int, ...]) -> Tensor:
    """(.., heads, tokens, dim) as (batch, heads, tokens, dim), of which only leading's last is heads."""
    x = x.expand(*leading, *x.shape[-2:])
    if len(leading) == 0:
        return x[None, None]
    return x.unsqueeze(1) if len(leading) == 1 else x.reshape(-1, *x.shape[-3:])


def _mask4d(mask: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Any mask that broadcasts to (*leading, queries, keys), with four dimensions; what broadcasts stays 1."""
    if mask.dim() > len(leading) + 2:
        raise InvalidArgument(f"attn_mask must broadcast to {(*leading, 'L', 'S')}, got {tuple(mask.shape)}")
    mask = mask.reshape((1,) * (len(leading) + 2 - mask.dim()) + tuple(mask.shape))
    if len(leading) == 0:
        return mask[None, None]
    if len(leading) == 1:
        return mask.unsqueeze(1)
    outer = mask.shape[: len(leading) - 1]
    if all(extent == 1 for extent in outer):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*leading[:-1], *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` by flashwave: the same arguments, shapes and meaning.

    Arguments:
        query: (..., heads, L, dim); key (..., heads_k, S, dim); value (..., heads_k, S, dim_v)
        attn_mask: broadcasts to (..., heads, L, S); bool, True where a key is seen, or numbers that are added to the
            scores, which have a gradient. Rows that see no key give 0.
        is_causal: query i sees keys 0 .. i, also where L and S differ
        scale: 1 / sqrt(dim) unless given
        enable_gqa: heads may be a multiple of heads_k
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InvalidArgument(f"{name} must be a tensor of two dimensions or more")
    if attn_mask is not None and is_causal:
        raise InvalidArgument("attn_mask cannot be used with is_causal=True: the mask says who sees what")
    leading = tuple(query.shape[:-2])
    leading_k = tuple(key.shape[:-2])
    if enable_gqa:
        if len(leading) < 1 or len(leading_k) < 1:
            raise InvalidArgument("enable_gqa takes tensors with heads: (..., heads, tokens, dim)")
        outer = torch.broadcast_shapes(leading[:-1], leading_k[:-1], value.shape[:-3])
        leading, leading_k = (*outer, leading[-1]), (*outer, leading_k[-1])
    else:
        leading = leading_k = tuple(torch.broadcast_shapes(leading, leading_k, value.shape[:-2]))
    q, k, v = _batched(query, leading), _batched(key, leading_k), _batched(value, leading_k)
    mask: dict[str, Any] = {}
    if is_causal:
        keep, mask = top_left(q.shape[-2], k.shape[-2])
        k, v = k[..., :keep, :], v[..., :keep, :]
    if attn_mask is not None:
        mask["bias"] = _mask4d(bias_of(attn_mask, query), leading)
    out = attention(
        *[x.transpose(1, 2) for x in (q, k, v)], softmax_scale=scale, dropout_p=dropout_p, **mask
    ).transpose(1, 2)
    return out.reshape(*leading, query.shape[-2], value.shape[-1])
