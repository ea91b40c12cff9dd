"""flashwave as an attention of Hugging Face transformers.

    import flashwave.integrations.transformers
    flashwave.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="flashwave")

Works on CPUs and GPUs, in fp32, bf16 and fp16, for models that use transformers' attention interface. Padding, packed
sequences (position_ids that start anew, or cu_seq_lens_*), sliding windows, softcap, attention sinks, additive position
biases, caches, continuous batching (`model.generate_batch`) and dropout are exact; masks that are none of these reach
the kernels as a bias. Nothing is left out silently: what cannot be done raises. Registering is explicit; importing
flashwave does not touch transformers.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from flashwave.attention import autocast
from flashwave.functions import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from flashwave.integrations import _transformers_masks as masks
from flashwave.integrations import _transformers_paged as paged
from flashwave.padding import index_first_axis, pad_input

__all__ = ["NAME", "attention_forward", "register"]

NAME = "flashwave"


def register(name: str = NAME) -> None:
    """Make `attn_implementation=name` mean flashwave. Calling it again changes nothing."""
    if not hasattr(transformers, "AttentionInterface"):
        raise ImportError(f"transformers {transformers.__version__} has no AttentionInterface: 4.48 or later is needed")
    transformers.AttentionInterface.register(name, attention_forward)
    # What continuous batching asks for up to transformers 5.21; from then on it asks for the name itself.
    transformers.AttentionInterface.register(f"paged|{name}", attention_forward)
    # Before there were mask functions (4.53), models made 4-D masks for every attention they did not know.
    if hasattr(transformers, "AttentionMaskInterface"):
        transformers.AttentionMaskInterface.register(name, masks.attention_mask)
    _is_no_package(name)


def _is_no_package(name: str) -> None:
    """transformers 5 takes every name with "flash" in it for a flash-attn package when a model is made: it would load
    that package's functions, and put another one in its place for models that list those they were tried with."""
    modeling = transformers.modeling_utils
    asked = getattr(modeling, "is_flash_attention_requested", None)
    if asked is None or name in getattr(asked, "_flashwave_names", ()):
        return

    def is_flash_attention_requested(*args: Any, **kwargs: Any) -> bool:
        names = (name, f"paged|{name}")
        return kwargs.get("requested_attention_implementation") not in names and asked(*args, **kwargs)

    is_flash_attention_requested._flashwave_names = (*getattr(asked, "_flashwave_names", ()), name)
    modeling.is_flash_attention_requested = is_flash_attention_requested


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query (b, h, sq, d), key and value (b, hk, sk, d) -> (b, sq, h, d).

    attention_mask is what `masks.attention_mask` made, or what a model made itself: None, a 2-D mask of tokens, 3-D
    numbers of packed sequences, or a 4-D mask, which then says everything (causal and sliding_window do not count).
    """
    _refuse(kwargs)
    query, key, value = autocast(query, key, value)  # also where a cache would keep its own dtype
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    options = {"dropout_p": dropout, "softmax_scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    masked = {"causal": causal, "window_size": window, **options}

    if kwargs.get("cache") is not None:
        lengths = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
        lengths.update(max_length_q=max_length_q, max_length_k=max_length_k)
        return paged.attend(module, query, key, value, kwargs["cache"], {**kwargs, **lengths}, masked), None

    if attention_mask is not None and attention_mask.dim() == 4:
        bias = masks.as_bias(attention_mask[..., : k.shape[1]], query.dtype, position_bias)
        return flash_attn_func(q, k, v, bias=bias, **options), None
    if position_bias is not None:
        if attention_mask is None:
            return flash_attn_func(q, k, v, bias=position_bias, **masked), None
        visible = masks.visible(attention_mask, q.shape[1], k.shape[1], causal, window)
        return flash_attn_func(q, k, v, bias=masks.as_bias(visible, query.dtype, position_bias), **options), None
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None and max_length_q is not None:
        lengths = (cu_seq_lens_q, cu_seq_lens_k, int(max_length_q), int(max_length_k))
        return _packed(q, k, v, lengths, masked), None
    if attention_mask is not None and attention_mask.dim() == 3:
        offsets, longest = masks.packed_offsets(attention_mask)
        return _packed(q, k, v, (offsets, offsets, longest, longest), masked), None
    if attention_mask is not None and attention_mask.dim() == 2:
        return _padded(q, k, v, attention_mask, causal, window, options), None
    if attention_mask is not None:
        raise ValueError(f"attention_mask: must have 2, 3 or 4 dimensions, got shape {tuple(attention_mask.shape)}")
    packed = masks.packed_by_position(position_ids, q.shape[0], q.shape[1], k.shape[1])
    if packed is not None:
        offsets, longest = packed
        return _packed(q, k, v, (offsets, offsets, longest, longest), masked), None
    return flash_attn_func(q, k, v, **masked), None


def _refuse(kwargs: dict) -> None:
    if kwargs.get("output_attentions"):
        raise ValueError('output_attentions: the weights are never stored; use attn_implementation="eager" for them')
    if kwargs.get("head_mask") is not None:
        raise ValueError('head_mask: not supported; use attn_implementation="eager"')
    if kwargs.get("cache") is None and kwargs.get("block_table") is not None:
        raise ValueError("block_table: must come with cache, transformers' cache of continuous batching")


def _packed(q: Tensor, k: Tensor, v: Tensor, lengths: tuple, masked: dict) -> Tensor:
    """Sequences one after the other, across the rows of the batch."""
    out = flash_attn_varlen_func(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, **masked)
    return out.unflatten(0, q.shape[:2])


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool, window: tuple, options: dict) -> Tensor:
    batch, queries = q.shape[:2]
    if mask.shape[1] > k.shape[1]:
        mask = mask[:, -k.shape[1] :]
    keys = mask.shape[1]
    k, v = k[:, :keys], v[:, :keys]  # a static cache is longer than what it holds so far
    layout = masks.padding_layout(mask)
    masked = {"causal": causal, "window_size": window, **options}
    windowed = window != (-1, -1)

    if windowed and not (layout.contiguous and (causal or queries == keys)):
        # A window counts positions with the padding between them; cutting the padding out would move it.
        bias = masks.as_bias(masks.visible(mask, queries, keys, causal, window), q.dtype, None)
        return flash_attn_func(q, k, v, bias=bias, **options)
    if not causal and not windowed:
        # Every query sees every token, so queries need not be cut: they may be another sequence's (cross-attention).
        offsets_q = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=q.device)
        out = _varlen(q.flatten(0, 1), k, v, offsets_q, queries, layout, masked)
        return out.unflatten(0, (batch, queries))
    if queries < keys and layout.contiguous and layout.last_tokens >= queries and not _needs_gradient(q, k, v, options):
        # Decoding from a left-padded cache: the cache is read in place.
        del masked["dropout_p"]
        return flash_attn_with_kvcache(q, k, v, cache_seqlens=keys, cache_leftpad=layout.starts, **masked)
    layout_q = layout if queries == keys else masks.padding_layout(mask[:, keys - queries :])
    rows = index_first_axis(q.flatten(0, 1), layout_q.indices)
    out = _varlen(rows, k, v, layout_q.offsets, layout_q.longest, layout, masked)
    return pad_input(out, layout_q.indices, batch, queries)


def _varlen(rows: Tensor, k: Tensor, v: Tensor, offsets_q: Tensor, longest_q: int, layout, masked: dict) -> Tensor:
    k, v = (index_first_axis(x.flatten(0, 1), layout.indices) for x in (k, v))
    return flash_attn_varlen_func(rows, k, v, offsets_q, layout.offsets, longest_q, layout.longest, **masked)


def _needs_gradient(q: Tensor, k: Tensor, v: Tensor, options: dict) -> bool:
    tensors = (q, k, v, options["sinks"])
    return options["dropout_p"] > 0 or (
        torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    )
