"""Appending to a cache: new keys are rotated to their positions and written into k and v; queries are rotated alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Problem
    from .blocks import Block
    from .layout import Layout


def append(problem: Problem, layout: Layout) -> None:
    """Writes k_new and v_new into the caches, in place, behind the keys in use."""
    new = torch.arange(problem.k_new.shape[1], device=problem.q.device)
    position = problem.seqused_k.long()[:, None] + new
    address = layout.key_address(0, layout.batch, position)
    k_new = problem.k_new if problem.rotary_cos is None else rotate(problem, problem.k_new, position)
    problem.k.index_put_(address, k_new)
    problem.v.index_put_(address, problem.v_new)


def rotate_queries(problem: Problem, q: Tensor, block: Block, rows: tuple[Tensor, Tensor] | None) -> Tensor:
    """A block of q, (sequences, queries, heads, dim), turned to its positions."""
    position = problem.seqused_k[block.b0 : block.b1, None].long()
    if problem.causal or problem.window_left >= 0 or problem.window_right >= 0:
        position = position + torch.arange(block.i0, block.i1, device=q.device)
        if rows is not None:  # a row that does not exist may lie beyond the table as well
            position = torch.where(rows[1], position, 0)
    return rotate(problem, q, position.expand(-1, block.queries))


def rotate(problem: Problem, x: Tensor, position: Tensor) -> Tensor:
    """x of shape (b, n, heads, dim), its rows turned by the position (b, n)."""
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (table[position].to(work)[:, :, None] for table in (problem.rotary_cos, problem.rotary_sin))
    half = cos.shape[-1]
    turned = x.clone()
    if problem.rotary_interleaved:
        a, b = turned[..., 0 : 2 * half : 2], turned[..., 1 : 2 * half : 2]
    else:
        a, b = turned[..., :half], turned[..., half : 2 * half]
    x_a, x_b = a.to(work, copy=True), b.to(work, copy=True)
    a.copy_(x_a * cos - x_b * sin)
    b.copy_(x_a * sin + x_b * cos)
    return turned
