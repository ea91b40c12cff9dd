"""The matrix products: which type their operands have, and the settings of PyTorch they must not depend on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Products:
    """Products of a problem whose q has the type `dtype`; `work` is the type of everything between them.

    By default operands are widened to fp32 (fp64 stays fp64). With `products=torch.bfloat16` they are bf16 and only the
    sums are fp32; P and dS, which are computed, are then narrowed to nearest or, with `round_toward_zero`, by cutting
    their low bits.
    """

    def __init__(self, dtype: torch.dtype, products: torch.dtype | None, round_toward_zero: bool, scale: float):
        if products not in (None, torch.bfloat16):
            raise ValueError(f"products must be None or torch.bfloat16, got {products}")
        if round_toward_zero and products is None:
            raise ValueError("round_toward_zero needs products=torch.bfloat16: exact products round nothing")
        if not dtype.is_floating_point:
            raise ValueError(f"q must have a floating-point dtype, got {dtype}")
        self.work = torch.float64 if dtype == torch.float64 else torch.float32
        self.operand = products or self.work
        self._cut = round_toward_zero
        # softmax_scale costs nothing where it can ride on q; a narrow q has no bits to spare for it.
        self.scale_of_q, self.scale_of_scores = (scale, 1.0) if products is None else (1.0, scale)

    def narrow(self, computed: Tensor) -> Tensor:
        """P or dS as an operand."""
        if self._cut:
            computed = (computed.float().view(torch.int32) & -0x10000).view(torch.float32)
        return computed.to(self.operand)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b of two operands, batched, in the working type."""
        if self.operand == self.work:
            return torch.bmm(a, b)
        if _sums_bf16_in_fp32(a.device):
            return torch.bmm(a, b, out_dtype=torch.float32).to(self.work)
        return torch.bmm(a.float(), b.float()).to(self.work)

    def add_times(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """total += a @ b, in place."""
        if self.operand == self.work:
            total.baddbmm_(a, b)
        else:
            total.add_(self.times(a, b))


@functools.cache
def _sums_bf16_in_fp32(device: torch.device) -> bool:
    """Whether this device and version of PyTorch hand out the fp32 sums of a bf16 product."""
    one = torch.ones((1, 1, 1), dtype=torch.bfloat16, device=device)
    try:
        return torch.bmm(one, one, out_dtype=torch.float32).dtype == torch.float32
    except (TypeError, RuntimeError):
        return False


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No autograd, and no autocast: it would narrow the products that were widened on purpose."""
    kind = device.type
    with torch.no_grad():
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                yield
        else:
            yield
