"""Rotary position embedding: flash-attn's `layers.rotary` and `ops.triton.rotary`, on every device, with gradients.

cos and sin are constants: they get no gradient. Positions beyond the rows of cos are an error, never a rotation that is
left out.
"""

from __future__ import annotations

from typing import Any, Union

import torch

from .attention import check_tensors, index_tensor, whole_number
from .errors import InvalidArgument
from .rotary_operator import Turn, rotated

Tensor = torch.Tensor
Offsets = Union[int, Tensor]


def _split_offsets(seqlen_offsets: Offsets) -> tuple[int, Tensor | None]:
    if isinstance(seqlen_offsets, Tensor):
        return 0, index_tensor("seqlen_offsets", seqlen_offsets)
    return whole_number("seqlen_offsets", seqlen_offsets), None


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """x with its first 2 * cos.shape[1] elements turned; conjugate turns the other way.

    x: (batch, seqlen, heads, head_dim), or (total, heads, head_dim) with cu_seqlens; cos, sin: (positions, pairs).
    Row i of sequence b is at position seqlen_offsets[b] + i. Pairs are (i, i + pairs), or (2i, 2i + 1) if interleaved.
    """
    check_tensors(x=x, cos=cos, sin=sin)
    if x.dim() not in (3, 4):
        raise InvalidArgument(f"x must be (batch, seqlen, heads, head_dim), got shape {tuple(x.shape)}")
    offset, offsets = _split_offsets(seqlen_offsets)
    spans = (0, x.shape[-2])
    turn = Turn(cos, sin, None, None, offsets, cu_seqlens, offset, max_seqlen, interleaved, conjugate, *spans)
    return rotated(x, turn, inplace)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """`apply_rotary`, forwards."""
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: Offsets = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Turns q and k of a packed qkv in place.

    qkv: (batch, seqlen, 3, heads, head_dim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, head_dim).
    """
    check_tensors(qkv=qkv, cos=cos, sin=sin)
    if qkv.dim() == 5:
        if qkv.shape[2] != 3:
            raise InvalidArgument(f"qkv must be (batch, seqlen, 3, heads, head_dim), got shape {tuple(qkv.shape)}")
        spans = (0, 1, 1, 1)
    else:
        if qkv.dim() != 4 or num_heads_q is None:
            raise InvalidArgument(
                "qkv must be (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, "
                f"num_heads_q + 2 * num_heads_k, head_dim), got shape {tuple(qkv.shape)}"
            )
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        if num_heads_q < 1 or heads_k < 1 or qkv.shape[2] != num_heads_q + 2 * heads_k:
            raise InvalidArgument(
                f"num_heads_q must leave an even number of heads for k and v of {qkv.shape[2]}, got {num_heads_q}"
            )
        spans = (0, num_heads_q, num_heads_q, heads_k)
    if (cos_k is None) != (sin_k is None):
        cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    offset, offsets = _split_offsets(seqlen_offsets)
    return rotated(qkv, Turn(cos, sin, cos_k, sin_k, offsets, None, offset, None, interleaved, False, *spans), True)


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: Offsets = 0
) -> Tensor:
    """Turns k of a packed kv, (batch, seqlen, 2, heads, head_dim), in place."""
    check_tensors(kv=kv, cos=cos, sin=sin)
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise InvalidArgument(f"kv must be (batch, seqlen, 2, heads, head_dim), got shape {tuple(kv.shape)}")
    offset, offsets = _split_offsets(seqlen_offsets)
    return rotated(kv, Turn(cos, sin, None, None, offsets, None, offset, None, interleaved, False, 0, 1), True)


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Every pair (a, b) as (-b, a)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """The formula in x's own precision. cos, sin: (seqlen, pairs) or (batch, seqlen, pairs)."""
    rotary_dim = 2 * cos.shape[-1]
    if rotary_dim > x.shape[-1]:
        raise InvalidArgument(f"cos must have at most head_dim / 2 columns, got {cos.shape[-1]}")
    if interleaved:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    else:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    turned = x[..., :rotary_dim]
    turned = turned * cos.unsqueeze(-2) + rotate_half(turned, interleaved) * sin.unsqueeze(-2)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1)


class RotaryEmbedding(torch.nn.Module):
    """RoFormer's rotary embedding with a table of cos and sin that grows as needed; with scale_base, XPos's scaling."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: Any = None,
        pos_idx_in_fp32: bool = True,
    ):
        """pos_idx_in_fp32: positions are fp32 even where the module was converted to a 16-bit type, as they always
        are in flash-attn from 2.8 on; before it was the argument before device.
        """
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.scale_base, self.pos_idx_in_fp32 = scale_base, pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None if scale_base is None else self._compute_scale(device)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)

    def _compute_scale(self, device: Any = None) -> Tensor:
        return (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) + 0.4 * self.dim) / (1.4 * self.dim)

    def _is_stale(self, seqlen: int, device: Any, dtype: Any) -> bool:
        cos = self._cos_cached
        if cos is None or seqlen > self._seq_len_cached or cos.device != device or cos.dtype != dtype:
            return True
        return self.training and cos.is_inference()  # autograd cannot keep a tensor made in inference mode

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        if not self._is_stale(seqlen, device, dtype):
            return
        self._seq_len_cached = seqlen
        frequencies, exact = self.inv_freq, torch.float32
        if self.pos_idx_in_fp32 and frequencies.dtype != torch.float32:
            frequencies = self._compute_inv_freq(device)  # what a conversion to 16 bits left is too coarse
        elif not self.pos_idx_in_fp32:
            exact = frequencies.dtype
        positions = torch.arange(seqlen, device=device, dtype=exact)
        angles = positions.unsqueeze(1) * frequencies.to(device)  # not einsum, which autocast would round
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self.scale if self.scale.dtype == torch.float32 else self._compute_scale(device)
        power = (torch.arange(seqlen, device=device, dtype=torch.float32) - seqlen // 2) / self.scale_base
        scale = scale.to(device) ** power.unsqueeze(1)
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: Offsets = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Turns qkv (packed, see `apply_rotary_emb_qkv_`), or q = qkv and k of kv, in place.

        With a tensor of offsets, max_seqlen says how long the table must be.
        """
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, qkv.device, qkv.dtype)
        elif not isinstance(seqlen_offset, Tensor):
            self._update_cos_sin_cache(qkv.shape[1] + seqlen_offset, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        if cos is None:
            raise InvalidArgument("max_seqlen must be given with a tensor seqlen_offset before the first table is made")
        scaled = self.scale is not None
        cos_k, sin_k = (self._cos_k_cached, self._sin_k_cached) if scaled else (None, None)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        angles = (cos_k, sin_k) if scaled else (cos, sin)
        return q, apply_rotary_emb_kv_(kv, *angles, self.interleaved, seqlen_offset)
