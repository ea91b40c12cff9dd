"""Attention as torch modules."""

from __future__ import annotations

from torch import Tensor, nn

from flashwave.functions import flash_attn_func, flash_attn_varlen_func
from flashwave.padding import pad_input, unpad_input


class FlashAttention(nn.Module):
    """Softmax attention of q, k and v; dropout only in training."""

    def __init__(self, softmax_scale: float | None = None, attention_dropout: float = 0.0):
        super().__init__()
        self.softmax_scale = softmax_scale
        self.dropout_p = attention_dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size=(-1, -1)) -> Tensor:
        """q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv); the result is (b, sq, h, dv)."""
        return flash_attn_func(
            q,
            k,
            v,
            dropout_p=self.dropout_p if self.training else 0.0,
            softmax_scale=self.softmax_scale,
            causal=causal,
            window_size=window_size,
        )


class FlashMHA(nn.Module):
    """Multi-head self-attention with its projections. num_heads_k < num_heads: heads of k and v are shared."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        batch_first: bool = True,
        attention_dropout: float = 0.0,
        causal: bool = False,
        device=None,
        dtype=None,
        *,
        num_heads_k: int | None = None,
    ):
        super().__init__()
        num_heads_k = num_heads if num_heads_k is None else num_heads_k
        if not batch_first:
            raise ValueError("batch_first: must be True")
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim: {embed_dim} is not a multiple of num_heads {num_heads}")
        if num_heads % num_heads_k != 0:
            raise ValueError(f"num_heads: {num_heads} is not a multiple of num_heads_k {num_heads_k}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_heads_k = num_heads_k
        self.head_dim = embed_dim // num_heads
        self.causal = causal
        self.dropout_p = attention_dropout
        rows = (num_heads + 2 * num_heads_k) * self.head_dim
        self.Wqkv = nn.Linear(embed_dim, rows, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False):
        """x (b, s, embed_dim); key_padding_mask (b, s), True (or 1) for tokens, False for padding.

        Returns (out, None). Padding attends to nothing and is attended by nothing.
        """
        if need_weights:
            raise ValueError("need_weights: the weights are never stored; must be False")
        options = {"dropout_p": self.dropout_p if self.training else 0.0, "causal": self.causal}
        if key_padding_mask is None:
            context = flash_attn_func(*self._project(x), **options)
        else:
            rows, indices, cu_seqlens, longest, _ = unpad_input(x, key_padding_mask)
            context = flash_attn_varlen_func(*self._project(rows), cu_seqlens, cu_seqlens, longest, longest, **options)
            context = pad_input(context, indices, *x.shape[:2])
        return self.out_proj(context.flatten(-2)), None

    def _project(self, x: Tensor):
        heads = self.Wqkv(x).unflatten(-1, (-1, self.head_dim))
        return heads.split((self.num_heads, self.num_heads_k, self.num_heads_k), dim=-2)
