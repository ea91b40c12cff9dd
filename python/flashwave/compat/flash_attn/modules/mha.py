"""flash_attn.modules.mha: attention layers. All of them use flashwave's kernels; `use_flash_attn` changes nothing.

The tensor-parallel ParallelMHA and depth-wise convolutions (dwconv) are not provided.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flashwave.functions import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from flashwave.padding import pad_input, unpad_input
from flashwave.rotary import RotaryEmbedding

__all__ = [
    "MHA",
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "LinearResidual",
    "SelfAttention",
    "get_alibi_slopes",
]


def get_alibi_slopes(nheads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... for a power of two n; between powers, every other slope of the next one is added."""
    whole = 2 ** math.floor(math.log2(nheads))
    slopes = [2.0 ** (-8.0 * (i + 1) / whole) for i in range(whole)]
    return slopes if whole == nheads else slopes + get_alibi_slopes(2 * whole)[0::2][: nheads - whole]


class _Attention(nn.Module):
    def __init__(
        self,
        causal=False,
        softmax_scale=None,
        attention_dropout=0.0,
        window_size=(-1, -1),
        alibi_slopes=None,
        deterministic=False,
    ):
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal) -> dict:
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "window_size": self.window_size,
            "alibi_slopes": self.alibi_slopes,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Attention):
    def forward(self, qkv, causal=None, cu_seqlens=None, max_seqlen=None, key_padding_mask=None):
        """qkv (b, s, 3, h, d), with key_padding_mask (b, s) True for tokens; or (total, 3, h, d) with cu_seqlens."""
        if key_padding_mask is not None:
            rows, indices, cu_seqlens, longest, _ = unpad_input(qkv, key_padding_mask)
            out = FlashSelfAttention.forward(self, rows, causal, cu_seqlens, longest)
            return pad_input(out, indices, *qkv.shape[:2])
        options = self._options(causal)
        q, k, v = qkv.unbind(-3)
        if cu_seqlens is None:
            return flash_attn_func(q, k, v, **options)
        return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, **options)


class FlashCrossAttention(_Attention):
    def __init__(  # upstream has the slopes before the window here, and after it in FlashSelfAttention
        self,
        causal=False,
        softmax_scale=None,
        attention_dropout=0.0,
        alibi_slopes=None,
        window_size=(-1, -1),
        deterministic=False,
    ):
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(
        self,
        q,
        kv,
        causal=None,
        cu_seqlens=None,
        max_seqlen=None,
        cu_seqlens_k=None,
        max_seqlen_k=None,
        key_padding_mask=None,
    ):
        """q (b, sq, h, d), kv (b, sk, 2, hk, d), with key_padding_mask (b, sk) True for tokens; or both ragged."""
        if key_padding_mask is not None:
            batch, seqlen = q.shape[:2]
            rows, _, cu_seqlens_k, longest, _ = unpad_input(kv, key_padding_mask)
            cu_seqlens = torch.arange(0, (batch + 1) * seqlen, seqlen, dtype=torch.int32, device=q.device)
            out = FlashCrossAttention.forward(
                self, q.flatten(0, 1), rows, causal, cu_seqlens, seqlen, cu_seqlens_k, longest
            )
            return out.unflatten(0, (batch, seqlen))
        options = self._options(causal)
        k, v = kv.unbind(-3)
        if cu_seqlens is None:
            return flash_attn_func(q, k, v, **options)
        return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **options)


class SelfAttention(FlashSelfAttention):
    def forward(self, qkv, causal=None, key_padding_mask=None):
        return super().forward(qkv, causal, key_padding_mask=key_padding_mask)


class CrossAttention(FlashCrossAttention):
    def forward(self, q, kv, causal=None, key_padding_mask=None):
        return super().forward(q, kv, causal, key_padding_mask=key_padding_mask)


class LinearResidual(nn.Linear):
    """A linear layer that returns its input too."""

    def forward(self, input):
        return super().forward(input), input


class MHA(nn.Module):
    """Multi-head self- or cross-attention with its projections, rotary embedding and cache."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        num_heads_kv=None,
        cross_attn=False,
        qkv_proj_bias=True,
        out_proj_bias=True,
        dropout=0.0,
        softmax_scale=None,
        causal=False,
        layer_idx=None,
        dwconv=False,
        rotary_emb_dim=0,
        rotary_emb_base=10000.0,
        rotary_emb_scale_base=None,
        rotary_emb_interleaved=False,
        use_alibi=False,
        window_size=(-1, -1),
        fused_bias_fc=False,
        use_flash_attn=False,
        return_residual=False,
        checkpointing=False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        if dwconv:
            raise NotImplementedError("dwconv: not provided")
        if cross_attn and rotary_emb_dim > 0:
            raise ValueError("rotary_emb_dim: not for cross-attention")
        num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        if embed_dim % num_heads != 0 or num_heads % num_heads_kv != 0:
            raise ValueError(
                f"embed_dim {embed_dim} must be a multiple of num_heads {num_heads}, and that of num_heads_kv "
                f"{num_heads_kv}"
            )
        self.embed_dim = embed_dim
        self.cross_attn = cross_attn
        self.causal = causal
        self.layer_idx = layer_idx
        self.rotary_emb_dim = rotary_emb_dim
        self.use_flash_attn = use_flash_attn
        self.return_residual = return_residual
        self.checkpointing = checkpointing
        self.num_heads = num_heads
        self.num_heads_kv = num_heads_kv
        self.head_dim = embed_dim // num_heads
        if rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim,
                base=rotary_emb_base,
                scale_base=rotary_emb_scale_base,
                interleaved=rotary_emb_interleaved,
                device=device,
            )
        factory = {"device": device, "dtype": dtype}
        kv_dim = 2 * self.head_dim * num_heads_kv
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **factory)
            self.Wkv = nn.Linear(embed_dim, kv_dim, bias=qkv_proj_bias, **factory)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_dim, bias=qkv_proj_bias, **factory)
        slopes = torch.tensor(get_alibi_slopes(num_heads), device=device) if use_alibi else None
        self.inner_cross_attn = FlashCrossAttention(
            causal=causal,
            softmax_scale=softmax_scale,
            attention_dropout=dropout,
            window_size=window_size,
            alibi_slopes=slopes,
        )
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **factory)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None):
        weight = self.out_proj.weight
        shape = (batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim)
        return torch.empty(shape, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def forward(
        self,
        x,
        x_kv=None,
        key_padding_mask=None,
        cu_seqlens=None,
        max_seqlen=None,
        mixer_subset=None,
        inference_params=None,
        **kwargs,
    ):
        """x (b, s, embed_dim), or (total, embed_dim) with cu_seqlens and max_seqlen; x_kv likewise (cross-attention).

        key_padding_mask (b, s): True for tokens. inference_params: a cache, with the fields of upstream's class.
        kwargs go to the attention: for ragged cross-attention cu_seqlens_k and max_seqlen_k.
        """
        if cu_seqlens is not None and key_padding_mask is not None:
            raise ValueError("key_padding_mask: not together with cu_seqlens")
        q, kv = self._project(x, x_kv, mixer_subset)
        if inference_params is not None:
            if cu_seqlens is not None or key_padding_mask is not None:
                raise ValueError("inference_params: not together with cu_seqlens or key_padding_mask")
            context = self._attend_cache(q, kv, inference_params)
        else:
            if self.rotary_emb_dim > 0:
                if cu_seqlens is not None:
                    raise ValueError("cu_seqlens: not together with rotary_emb_dim")
                q, kv = self.rotary_emb(q, kv)
            context = self._attend(q, kv, key_padding_mask, cu_seqlens, max_seqlen, kwargs)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out

    def _project(self, x, x_kv, mixer_subset):
        if self.cross_attn:
            q = self.Wq(x if mixer_subset is None else x[:, mixer_subset])
            kv = self.Wkv(x if x_kv is None else x_kv)
        else:
            if x_kv is not None or mixer_subset is not None:
                raise ValueError("x_kv and mixer_subset: only with cross_attn=True")
            qkv = self.Wqkv(x)
            q, kv = qkv[..., : self.embed_dim], qkv[..., self.embed_dim :]
        return q.unflatten(-1, (-1, self.head_dim)), kv.unflatten(-1, (2, self.num_heads_kv, self.head_dim))

    def _attend(self, q, kv, key_padding_mask, cu_seqlens, max_seqlen, kwargs):
        arguments = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, **kwargs}
        if cu_seqlens is not None and not self.cross_attn:
            arguments = {"cu_seqlens_k": cu_seqlens, "max_seqlen_k": max_seqlen, **arguments}
        indices = None
        if key_padding_mask is not None and not self.cross_attn:
            (batch, seqlen), mask = q.shape[:2], key_padding_mask
            q, indices, offsets, longest, _ = unpad_input(q, mask)
            kv = unpad_input(kv, mask)[0]
            arguments.update(cu_seqlens=offsets, cu_seqlens_k=offsets, max_seqlen=longest, max_seqlen_k=longest)
        elif key_padding_mask is not None:
            arguments["key_padding_mask"] = key_padding_mask
        if self.checkpointing:
            context = checkpoint(self.inner_cross_attn, q, kv, use_reentrant=False, **arguments)
        else:
            context = self.inner_cross_attn(q, kv, **arguments)
        return context if indices is None else pad_input(context, indices, batch, seqlen)

    def _attend_cache(self, q, kv, params):
        """Append kv to the layer's cache behind what it holds, and attend to all of it."""
        if self.layer_idx is None:
            raise ValueError("layer_idx: needed in the constructor for inference_params")
        if self.layer_idx not in params.key_value_memory_dict:
            params.key_value_memory_dict[self.layer_idx] = self.allocate_inference_cache(
                params.max_batch_size, params.max_seqlen, dtype=kv.dtype
            )
        held = params.seqlen_offset if params.lengths_per_sample is None else params.lengths_per_sample
        if self.rotary_emb_dim > 0:
            q, kv = self.rotary_emb(q, kv, seqlen_offset=held, max_seqlen=params.max_seqlen)
        first = params.batch_size_offset
        cache = params.key_value_memory_dict[self.layer_idx][first : first + q.shape[0]]
        return flash_attn_with_kvcache(
            q,
            cache[:, :, 0],
            cache[:, :, 1],
            kv[:, :, 0],
            kv[:, :, 1],
            cache_seqlens=held,
            softmax_scale=self.inner_cross_attn.softmax_scale,
            causal=self.inner_cross_attn.causal,
            window_size=self.inner_cross_attn.window_size,
            alibi_slopes=self.inner_cross_attn.alibi_slopes,
        )
