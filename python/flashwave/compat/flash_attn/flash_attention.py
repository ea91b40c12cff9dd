"""flash_attn.flash_attention of flash-attn 0.x and 1.x: modules of packed qkv."""

from __future__ import annotations

from torch import nn

from flashwave.functions import (
    flash_attn_qkvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flashwave.modules import FlashMHA
from flashwave.padding import pad_input, unpad_input

__all__ = ["FlashAttention", "FlashMHA"]


class FlashAttention(nn.Module):
    def __init__(self, softmax_scale=None, attention_dropout=0.0):
        super().__init__()
        self.softmax_scale = softmax_scale
        self.dropout_p = attention_dropout

    def forward(self, qkv, key_padding_mask=None, causal=False, cu_seqlens=None, max_s=None, need_weights=False):
        """qkv (b, s, 3, h, d), with key_padding_mask (b, s) True for tokens; or (total, 3, h, d) with cu_seqlens and
        max_s. Returns (out, None)."""
        if need_weights:
            raise ValueError("need_weights: the weights are never stored; must be False")
        if cu_seqlens is not None and max_s is None:
            raise ValueError("max_s: the longest sequence is needed with cu_seqlens")
        options = {
            "dropout_p": self.dropout_p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": causal,
        }
        if cu_seqlens is not None:
            return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_s, **options), None
        if key_padding_mask is None:
            return flash_attn_qkvpacked_func(qkv, **options), None
        rows, indices, cu_seqlens, longest, _ = unpad_input(qkv, key_padding_mask)
        out = flash_attn_varlen_qkvpacked_func(rows, cu_seqlens, longest, **options)
        return pad_input(out, indices, *qkv.shape[:2]), None
