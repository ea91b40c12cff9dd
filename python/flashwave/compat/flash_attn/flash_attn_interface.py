"""flash_attn.flash_attn_interface: the public functions, those of 1.x, and the halves that ring attention calls."""

from __future__ import annotations

from torch import Tensor

from flashwave.compat import flash_attn_2_cuda as flash_attn_gpu
from flashwave.functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flashwave.legacy import (
    flash_attn_unpadded_func,
    flash_attn_unpadded_kvpacked_func,
    flash_attn_unpadded_qkvpacked_func,
    flash_attn_unpadded_qkvpacked_split_func,
)

__all__ = [
    "USE_TRITON_ROCM",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_unpadded_func",
    "flash_attn_unpadded_kvpacked_func",
    "flash_attn_unpadded_qkvpacked_func",
    "flash_attn_unpadded_qkvpacked_split_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "maybe_contiguous",
    "round_multiple",
]

USE_TRITON_ROCM = False
flash_attn_cuda = flash_attn_gpu


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def round_multiple(x: int, m: int) -> int:
    return (x + m - 1) // m * m


def _get_block_size_n(device, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys per block of S_dmask's scaling. Ours is scaled by each row's largest element: one block holds all keys."""
    return 1 << 30


def _get_block_size(device, head_dim: int, is_dropout: bool) -> int:
    """`_get_block_size_n` of flash-attn 0.x and 1.x."""
    return _get_block_size_n(device, head_dim, is_dropout, False)


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
):
    """(out, softmax_lse, S_dmask, rng_state), without a gradient."""
    return tuple(flash_attn_gpu.forward_of(dict(locals())))


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
):
    """(out, softmax_lse, S_dmask, rng_state), without a gradient."""
    return tuple(flash_attn_gpu.forward_of(dict(locals())))


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Writes dq, dk and dv, and returns softmax_d. out and softmax_lse may be those of more keys than k holds."""
    return flash_attn_gpu.backward_of(dict(locals()))[3]


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """`_flash_attn_backward` of ragged batches."""
    return flash_attn_gpu.backward_of(dict(locals()))[3]


# Upstream these are the same functions behind torch's dispatcher.
_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward
