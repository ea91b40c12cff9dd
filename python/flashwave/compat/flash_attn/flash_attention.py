"""flash_attn.flash_attention of flash-attn 0.x and 1.x: modules of packed qkv."""

from __future__ import annotations

from torch import nn

from flashwave.functions import (
    flash_attn_qkvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flashwave.padding import pad_input, unpad_input
from flashwave.rotary import RotaryEmbedding

__all__ = ["FlashAttention", "FlashMHA"]


class FlashAttention(nn.Module):
    def __init__(self, softmax_scale=None, attention_dropout=0.0, device=None, dtype=None):
        """device and dtype: of nothing, there are no parameters; FlashMHA hands them on."""
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


class FlashMHA(nn.Module):
    """Multi-head self-attention with its projections Wqkv and out_proj around inner_attn, a FlashAttention."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        bias=True,
        batch_first=True,
        attention_dropout=0.0,
        causal=False,
        use_rotary_emb=None,
        device=None,
        dtype=None,
        **kwargs,
    ):
        """use_rotary_emb: None or "1d". kwargs are ignored, as upstream."""
        super().__init__()
        if not batch_first:
            raise ValueError("batch_first: must be True")
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim: {embed_dim} is not a multiple of num_heads {num_heads}")
        if use_rotary_emb not in (None, "1d"):
            raise ValueError(f"use_rotary_emb: must be None or '1d', got {use_rotary_emb!r}")
        factory = {"device": device, "dtype": dtype}
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.causal, self.use_rotary_emb = causal, use_rotary_emb
        if use_rotary_emb:
            self.rotary_emb = RotaryEmbedding(self.head_dim, device=device)
        self.Wqkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias, **factory)
        self.inner_attn = FlashAttention(attention_dropout=attention_dropout, **factory)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)

    def forward(self, x, key_padding_mask=None, need_weights=False):
        """x (b, s, embed_dim); key_padding_mask (b, s), True for tokens. Returns (out, None)."""
        qkv = self.Wqkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        if self.use_rotary_emb:
            qkv = self.rotary_emb(qkv)
        context, weights = self.inner_attn(qkv, key_padding_mask, causal=self.causal, need_weights=need_weights)
        return self.out_proj(context.flatten(-2)), weights
