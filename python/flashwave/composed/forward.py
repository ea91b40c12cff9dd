"""The forward: softmax of whole rows of a block, so nothing is rescaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .blocks import Block, Tiling
from .check import checked
from .layout import Layout
from .philox import Dropout
from .products import Products, plain_arithmetic
from .rotary import append
from .scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

    from ..problem import Problem


def forward(
    problem: Problem,
    probs: bool = False,
    *,
    products: torch.dtype | None = None,
    round_toward_zero: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """out, lse and, if asked for, the softmax (docs/semantics.md, `probs`). Appends k_new and v_new to k and v."""
    problem = checked(problem)
    arithmetic = Products(problem.q.dtype, products, round_toward_zero, problem.softmax_scale)
    with plain_arithmetic(problem.q.device):
        return _Forward(problem, arithmetic, probs).run()


class _Forward:
    def __init__(self, problem: Problem, products: Products, want_probs: bool):
        self.p, self.products = problem, products
        self.layout = layout = Layout(problem)
        self.tiling = Tiling(layout)
        self.scores = Scores(self.tiling, products)
        self.dropout = Dropout(problem) if problem.dropout_p > 0 else None
        self.out = layout.query_output(problem.v.shape[-1], problem.q.dtype, 0)
        self.lse = layout.query_output(None, products.work, float("-inf"))
        self.probs: Tensor | None = None
        if want_probs:
            shape = (layout.batch, layout.heads, problem.max_seqlen_q, problem.max_seqlen_k)
            self.probs = torch.zeros(shape, dtype=torch.float32, device=layout.device)

    def run(self) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.p.k_new is not None:
            append(self.p, self.layout)
        for b0, b1 in self.tiling.groups():
            k = self.layout.read_keys(self.p.k, b0, b1, self.products.operand)
            v = self.layout.read_keys(self.p.v, b0, b1, self.products.operand)
            for block in self.tiling.blocks(b0, b1):
                self._block(block, k[:, block.j0 : block.j1], v[:, block.j0 : block.j1])
        lse = self.layout.finish_queries(self.lse)
        return self.layout.finish_queries(self.out), lse.transpose(-1, -2).contiguous(), self.probs

    def _block(self, block: Block, k: Tensor, v: Tensor) -> None:
        rows = self.layout.query_rows(block)
        s, _ = self.scores.of_block(block, self.scores.queries(block, rows), k, want_slope=False)
        exp, total, lse = self._softmax(s, block)
        # A row that sees nothing has nothing but zeros to divide.
        factor = total.masked_fill(total == 0, 1).reciprocal_()
        if self.dropout is not None:
            kept = self.dropout.kept(block).view_as(exp)
            if self.probs is not None:
                signed = torch.where(kept, exp, -exp)
                self._write_probs(block, signed.mul_(factor))
            exp.mul_(kept)
            factor.mul_(self.dropout.scale)
        elif self.probs is not None:
            self._write_probs(block, exp * factor)
        out = self.products.times(self.products.narrow(exp).flatten(2, 3).flatten(0, 1), v)
        out.mul_(factor.view(out.shape[0], -1, 1))
        self.layout.write_queries(self.out, block, rows, self.scores.rows(out, block))
        self.layout.write_queries(self.lse, block, rows, lse[..., 0].permute(0, 3, 1, 2).flatten(2, 3))

    def _softmax(self, s: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """exp(s - top), in the place of s, its sums (sinks included) and their logarithm plus top."""
        lowest = float("-inf")
        top = s.amax(-1, keepdim=True) if block.keys > 0 else s.new_full((*s.shape[:-1], 1), lowest)
        sink = None
        if self.p.sinks is not None:
            sink = self.scores.per_head(self.p.sinks, block)
            top = torch.maximum(top, sink)
        top.masked_fill_(top == lowest, 0)  # every term is exp(-inf) = 0 then, whatever is subtracted
        exp = s.sub_(top).exp_()
        total = exp.sum(-1, keepdim=True)
        if sink is not None:
            total += (sink - top).exp_()
        return exp, total, total.log().add_(top)

    def _write_probs(self, block: Block, signed: Tensor) -> None:
        self.scores.hide(signed, block, 0)  # dropout gives a sign to the zero of a hidden element
        part = self.probs[block.b0 : block.b1, :, block.i0 : block.i1, block.j0 : block.j1]
        part.copy_(signed.flatten(1, 2))
