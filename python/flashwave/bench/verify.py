"""A result is compared with exact attention before it is timed, by the rule of docs/numerics.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .workloads import OURS, PEERS, Inputs, Shape, padding_of

Tensor = torch.Tensor

_ROWS = 1024  # queries computed at a time: the matrix of a long sequence is never whole
_NAMES = ("out", "dq", "dk", "dv")


class WrongResult(Exception):
    """What was to be timed does not compute attention."""


def _one_head(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, exact: bool, gradients: bool
) -> list[Tensor]:
    """out (and dq, dk, dv) of (seqlen, dim) tensors: in fp64, or in fp32 with every matrix rounded to q's type."""
    compute = torch.float64 if exact else torch.float32
    scale, seqlen = q.shape[-1] ** -0.5, q.shape[0]

    def rounded(matrix: Tensor) -> Tensor:
        return matrix if exact else matrix.to(q.dtype).to(compute)

    q_, k_, v_, dout_ = [tensor.to(compute) for tensor in (q, k, v, dout)]
    results = [torch.zeros_like(q_) for _ in range(4 if gradients else 1)]
    for start in range(0, seqlen, _ROWS):
        rows = slice(start, min(start + _ROWS, seqlen))
        scores = rounded(rounded(q_[rows] @ k_.T) * scale)
        if causal:
            visible = torch.ones_like(scores, dtype=torch.bool).tril_(start)
            scores = scores.masked_fill_(~visible, -torch.inf)
        probs = rounded(torch.softmax(scores, dim=-1))
        out = results[0][rows] = rounded(probs @ v_)
        if gradients:
            dprobs = rounded(dout_[rows] @ v_.T)
            delta = (dout_[rows] * out).sum(-1, keepdim=True)
            dscores = rounded(rounded(probs * (dprobs - delta)) * scale)
            results[1][rows] = rounded(dscores @ k_)
            results[2] += dscores.T @ q_[rows]
            results[3] += probs.T @ dout_[rows]
    return [rounded(result) for result in results]


def _atol(reference: Tensor, dtype: torch.dtype, gradient: bool) -> float:
    largest = float(reference.abs().max())
    if dtype == torch.float32:
        return 1e-6 * (1.0 + largest)
    unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)) if largest > 0.0 else 0.0
    return unit if gradient else unit / 2.0


@contextmanager
def _poisoned_memory(like: Inputs) -> Iterator[None]:
    """Memory handed out uninitialised holds NaN, so that an element that is never written shows."""
    if like.q.is_cuda:  # the caching allocator hands the same blocks out again
        blocks = [torch.full_like(tensor, torch.nan) for tensor in (*like, *like)]
        torch.cuda.synchronize()
        del blocks
        yield
        return
    fill, mode = torch.utils.deterministic.fill_uninitialized_memory, torch.get_deterministic_debug_mode()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def check(shape: Shape, inputs: Inputs, gradients: bool, name: str = OURS) -> None:
    """Raises WrongResult unless flashwave's results are finite, and right in the last head of the last sequence.

    Nothing is dropped here: that is what the package's tests check. name: flashwave as it chooses itself, or one of its
    backends.
    """
    peer, padding = PEERS[name], padding_of(shape, inputs.q.dtype, inputs.q.device)
    leaves = [tensor.clone().requires_grad_(gradients) for tensor in inputs[:3]]
    with _poisoned_memory(inputs):
        out = peer.attend(*(peer.layout(leaf, padding) for leaf in leaves), shape.causal, padding=padding)
        if padding is not None:
            out = torch.zeros_like(inputs.q).masked_scatter(padding.kept[..., None, None], out)
        results = [out.detach()]
        if gradients:
            results += torch.autograd.grad(out, leaves, inputs.dout)
    rows = shape.lengths()[-1]
    head = [tensor[-1, :rows, -1] for tensor in inputs]
    exact = _one_head(*head, shape.causal, True, gradients)
    naive = _one_head(*head, shape.causal, False, gradients)
    for what, result, reference, usual in zip(_NAMES, results, exact, naive):
        if result.shape != inputs.q.shape:
            raise WrongResult(f"{what} has shape {tuple(result.shape)} for {shape}")
        if not bool(torch.isfinite(result).all()):
            raise WrongResult(f"{what} has elements that are not finite, or not written, for {shape}")
        error = float((result[-1, :rows, -1].to(torch.float64) - reference).abs().max())
        gradient = what != "out"
        allowed = (3.0 if gradient else 2.0) * float((usual.to(torch.float64) - reference).abs().max())
        allowed += _atol(reference, inputs.q.dtype, gradient)
        if not error <= allowed:
            raise WrongResult(f"{what} is off by {error:.3g}, {allowed:.3g} is allowed, for {shape}")
