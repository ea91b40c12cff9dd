"""transformers' continuous batching: many requests in one row, their keys in a cache of blocks.

The cache's own `update` stores the new keys and says how the attention finds all of them: as packed tensors, or, where
every request has one query, as a block table. Two forms of `update` are known: up to transformers 5.1 it takes the
indices and returns (total, heads, dim); later it takes the keyword arguments, which it completes in place, and returns
what it was given the shape of.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from flashwave.functions import flash_attn_varlen_func, flash_attn_with_kvcache


def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, cache: Any, kwargs: dict, masked: dict) -> Tensor:
    """q (1, h, total_q, d), k and v (1, hk, new keys, d) -> (1, total_q, h, d). masked: causal, window_size, ..."""
    kwargs = dict(kwargs)
    if "kwargs" in inspect.signature(cache.update).parameters:
        k, v = cache.update(key_states=k, value_states=v, layer_idx=module.layer_idx, kwargs=kwargs)
        k, v = k.transpose(1, 2)[0], v.transpose(1, 2)[0]
    else:
        indices = {name: kwargs[name] for name in ("read_index", "write_index") if name in kwargs}
        k, v = cache.update(k, v, module.layer_idx, **indices)
    rows = q.transpose(1, 2)[0]
    offsets_q, offsets_k = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    longest_q = _first(kwargs, "max_length_q", "max_seqlen_q")
    longest_k = _first(kwargs, "max_length_k", "max_seqlen_k")
    if isinstance(offsets_k, dict):  # by kind of layer
        kind = "full_attention" if masked["window_size"] == (-1, -1) else "sliding_attention"
        offsets_k, longest_k = offsets_k[kind], longest_k[kind]
    k_cache, v_cache, table = (kwargs.get(name) for name in ("k_cache", "v_cache", "block_table"))
    if k_cache is None or v_cache is None or table is None:
        lengths = (offsets_q.to(torch.int32), offsets_k.to(torch.int32), int(longest_q), int(longest_k))
        return flash_attn_varlen_func(rows, k, v, *lengths, **masked)[None]
    stored = (offsets_k.diff() - 1)[: rows.shape[0]].to(torch.int32)  # one query and one new key each
    options = {name: value for name, value in masked.items() if name != "dropout_p"}
    out = flash_attn_with_kvcache(
        rows[:, None], k_cache, v_cache, k[:, None], v[:, None], cache_seqlens=stored, block_table=table, **options
    )
    return out.transpose(0, 1)


def _first(kwargs: dict, *names: str) -> Any:
    """The argument under the first of its names that is given: transformers has renamed it."""
    return next(kwargs[name] for name in names if kwargs.get(name) is not None)
