"""What cuda_vs_sdpa.py compares with: backends of torch's attention, FlashAttention-3 and FlashAttention-4.

Each function gives a call of the same memory as ours, (batch, seq, head, dim); backwards alone, for which the forward
runs once, since autograd would leave the stream that a graph is captured from.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashwave.bench.timing import Call

Tensor = torch.Tensor

FLASH2, FLASH3, FLASH4 = "FlashAttention-2", "FlashAttention-3", "FlashAttention-4"
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    FLASH2: SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


class Options(NamedTuple):
    """What FlashAttention-3 and 4 spell differently."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    deterministic: bool = False
    offsets: Optional[Tensor] = None  # of packed sequences, of queries and keys
    longest: int = 0


# --------------------------------------------------------------------------------------------------------------- torch


def sdpa(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Call:
    """torch's attention with one of its backends. It has no bias beside a causal mask."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}

    def call() -> Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, bias, dropout, causal, **grouped)

    return call


def cudnn_backward(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, dropout: float = 0.0) -> Call:
    q, k, v, dout = (tensor.transpose(1, 2) for tensor in (q, k, v, dout))
    results = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout, causal, False)
    out, lse, rows_q, rows_k, longest_q, longest_k, seed, offset = results[:8]
    rest = (out, lse, seed, offset, None, rows_q, rows_k, longest_q, longest_k, dropout, causal)
    return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention_backward(dout, q, k, v, *rest)


def flash2_backward(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, dropout: float = 0.0) -> Call:
    q, k, v, dout = (tensor.transpose(1, 2) for tensor in (q, k, v, dout))
    results = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False)
    out, lse, rows_q, rows_k, longest_q, longest_k, seed, offset = results[:8]
    rest = (out, lse, rows_q, rows_k, longest_q, longest_k, dropout, causal, seed, offset)
    return lambda: torch.ops.aten._scaled_dot_product_flash_attention_backward(dout, q, k, v, *rest)


# --------------------------------------------------------------------------------------------------- FlashAttention-3


def flash3_is_here() -> bool:
    return hasattr(torch.ops.flash_attn_3, "bwd")


def _of_flash3(options: Options) -> dict[str, Any]:
    named: dict[str, Any] = {"is_causal": options.causal, "softcap": options.softcap}
    named["window_size_left"], named["window_size_right"] = options.window
    if options.offsets is not None:
        named.update(cu_seqlens_q=options.offsets, cu_seqlens_k=options.offsets)
        named.update(max_seqlen_q=options.longest, max_seqlen_k=options.longest)
    return named


def flash3(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Call:
    named = _of_flash3(options)
    return lambda: torch.ops.flash_attn_3.fwd(q, k, v, **named)


def flash3_backward(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, options: Options) -> Call:
    named = _of_flash3(options)
    out, lse = torch.ops.flash_attn_3.fwd(q, k, v, **named)[:2]
    named["deterministic"] = options.deterministic
    return lambda: torch.ops.flash_attn_3.bwd(dout, q, k, v, out, lse, **named)


# --------------------------------------------------------------------------------------------------- FlashAttention-4

_flash4: Any = None


def load_flash4(folder: str) -> None:
    """From a folder with flash-attn-4 and what it needs (pip install --target), or its parts on sys.path already."""
    global _flash4
    sys.path += [folder, f"{folder}/nvidia_cutlass_dsl/dsl_packages"]  # what the wheel's .pth file would do
    _flash4 = importlib.import_module("flash_attn.cute.interface")


def flash4_is_here() -> bool:
    return _flash4 is not None


def _of_flash4(options: Options) -> dict[str, Any]:
    named: dict[str, Any] = {"causal": options.causal, "softcap": options.softcap}
    left, right = (None if side < 0 else side for side in options.window)
    named.update(window_size_left=left, window_size_right=right)
    if options.offsets is not None:
        named.update(cu_seqlens_q=options.offsets, cu_seqlens_k=options.offsets)
        named.update(max_seqlen_q=options.longest, max_seqlen_k=options.longest)
    return named


def flash4(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Call:
    named = _of_flash4(options)
    named["softcap"] = options.softcap or None
    return lambda: _flash4._flash_attn_fwd(q, k, v, **named)


def flash4_backward(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, options: Options) -> Call:
    named = _of_flash4(options)
    out, lse = _flash4._flash_attn_fwd(q, k, v, **{**named, "softcap": options.softcap or None}, return_lse=True)[:2]
    named["deterministic"] = options.deterministic
    return lambda: _flash4._flash_attn_bwd(q, k, v, out, dout, lse, **named)


# ----------------------------------------------------------------------------------------------------------- all there


def flash_forwards(q: Tensor, k: Tensor, v: Tensor, options: Options) -> dict[str, list[Call]]:
    """FlashAttention-3 and 4, those that are here."""
    found = {}
    if flash3_is_here():
        found[FLASH3] = [flash3(q, k, v, options)]
    if flash4_is_here():
        found[FLASH4] = [flash4(q, k, v, options)]
    return found


def flash_backwards(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, options: Options) -> dict[str, list[Call]]:
    """The same backward. One that refuses the problem already in its forward is left out."""
    found: dict[str, list[Call]] = {}
    for name, here, make in ((FLASH3, flash3_is_here, flash3_backward), (FLASH4, flash4_is_here, flash4_backward)):
        if not here():
            continue
        try:
            found[name] = [make(q, k, v, dout, options)]
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            print(f"{name} does not take it: {str(error).splitlines()[0] if str(error) else error!r}", file=sys.stderr)
    return found
