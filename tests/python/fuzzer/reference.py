"""docs/semantics.md for whole tensors, in the type of its arguments (fp64), differentiable any number of times.

Written apart from the package and from tests/python/oracle.py, which does one head at a time and takes 100 times as
long; test_fuzzer.py holds the two to each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

INF = float("inf")

_unit: float | None = None  # of rounding, while `rounded_out` is in force
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def rounded_out(dtype: torch.dtype) -> Iterator[None]:
    """First derivatives as they come out when each row's rowsum(dO * O) is as wrong as the rounding of O can make it.

    A backward gets O in the type of the inputs (docs/numerics.md). Rows that see one key, or keys that are alike, have
    derivatives near 0 which are the difference of two large sums: there this is the largest error by far. Whether a
    row's sum is too large or too small is random.
    """
    global _unit
    with _one_at_a_time:
        _unit = torch.finfo(dtype).eps / 2
        try:
            yield
        finally:
            _unit = None


class _RoundedOut(torch.autograd.Function):
    """out; what reaches the scores through it is off by what `rounded_out` says."""

    @staticmethod
    def forward(out: Tensor, scores: Tensor, probs: Tensor) -> Tensor:
        return out.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])
        ctx.unit = _unit

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple:
        out, probs = ctx.saved_tensors
        error = ctx.unit * (d_out * out).abs().sum(-1).transpose(1, 2)[..., None]  # (b, h, sq, 1)
        sign = torch.randint(0, 2, error.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
        return d_out, -probs * error * sign, None


class Result(NamedTuple):
    out: Tensor  # (b, sq, h, dv)
    lse: Tensor  # (b, h, sq), -inf in rows that see nothing
    probs: Tensor  # (b, h, sq, sk)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float | Tensor = 0.0,
    slopes: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    weights: Tensor | None = None,
) -> Result:
    """weights (b, h, sq, sk) multiply the probabilities: dropout's zeros and 1 / (1 - p)."""
    (b, sq, h, d), sk = q.shape, k.shape[1]
    k, v = (x.repeat_interleave(h // max(1, x.shape[2]), 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (d**-0.5 if scale is None else scale)
    if isinstance(softcap, Tensor) or softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    diagonal = torch.arange(sq)[:, None] + sk - sq
    distance = torch.arange(sk) - diagonal
    if slopes is not None:
        s = s - (slopes if slopes.dim() == 2 else slopes[None])[:, :, None, None] * distance.abs().to(q.dtype)
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros(sq, sk, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    s = s.masked_fill(hidden, -INF)
    column = (torch.full((h,), -INF, dtype=q.dtype) if sinks is None else sinks).view(1, h, 1, 1).expand(b, h, sq, 1)
    top = torch.cat((s, column), 3).detach().amax(3, keepdim=True)
    top = torch.where(top == -INF, 0.0, top)
    e = torch.exp(s - top)
    total = e.sum(3, keepdim=True) + torch.exp(column - top)
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    probs = e / total
    lse = torch.where(empty, -INF, top + torch.log(total)).squeeze(3)
    used = probs if weights is None else probs * weights
    out = torch.einsum("bhij,bjhd->bihd", used, v)
    if _unit is not None:
        out = _RoundedOut.apply(out, s, probs.detach())
    return Result(out, lse, probs)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x (b, s, h, d) with row (b, i) turned to positions[b, i] of cos and sin (rows, pairs)."""
    pairs = cos.shape[1]
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned[..., :pairs], turned[..., pairs:]
    first, second = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((joined, rest), -1)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, scale: float, z: float, ignore: int) -> Tensor:
    """Loss of each row; 0 where the label is `ignore`."""
    scores = logits * scale
    lse = torch.logsumexp(scores, -1)
    counted = labels != ignore
    of_label = scores.gather(-1, torch.where(counted, labels, 0)[:, None])[:, 0]
    loss = lse - (1 - smoothing) * of_label - smoothing * scores.mean(-1) + z * lse.square()
    return torch.where(counted, loss, 0.0)
