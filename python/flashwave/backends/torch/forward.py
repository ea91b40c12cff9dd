"""The forward: an online softmax, over one tile of keys after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .blocks import Block, Tiling
from .layout import Layout
from .philox import Dropout
from .products import Products, plain_arithmetic
from .rotary import append
from .scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Piece, Problem


def forward(
    problem: Problem,
    probs: bool = False,
    *,
    products: torch.dtype | None = None,
    round_toward_zero: bool = False,
    piece: Piece | None = None,
    exact: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """out, lse and, if asked for, the softmax (docs/semantics.md, `probs`). Appends k_new and v_new to k and v.

    exact: out is not rounded to the type of q.
    """
    arithmetic = Products(problem.q.dtype, products, round_toward_zero, problem.scale)
    with plain_arithmetic(problem.q.device):
        return _Forward(problem, arithmetic, probs, piece, exact).run()


class _Forward:
    def __init__(self, problem: Problem, products: Products, want_probs: bool, piece: Piece | None, exact: bool):
        self.p, self.products = problem, products
        self.layout = layout = Layout(problem, piece)
        self.tiling = Tiling(layout, whole_rows=want_probs)  # the matrix takes a row's final sum
        self.scores = Scores(self.tiling, products)
        self.dropout = Dropout(problem, piece) if problem.dropout_p > 0 else None
        self.out = layout.query_output(problem.v.shape[-1], products.work if exact else problem.q.dtype, 0)
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
                self._block(block, k, v)
        lse = self.layout.finish_queries(self.lse)
        return self.layout.finish_queries(self.out), lse.transpose(-1, -2).contiguous(), self.probs

    def _block(self, block: Block, k: Tensor, v: Tensor) -> None:
        rows = self.layout.query_rows(block)
        q = self.scores.queries(block, rows)
        top, total = self._before_any_key(block)
        out = torch.zeros((*q.shape[:2], v.shape[-1]), dtype=self.products.work, device=q.device)
        for tile in self.tiling.tiles(block):
            seen = slice(tile.j0, tile.j1)
            s, _ = self.scores.of_block(tile, q, k[:, seen], want_slope=False)
            higher = torch.maximum(top, s.amax(-1, keepdim=True))
            base = _finite(higher)
            exp, shrink = s.sub_(base).exp_(), top.sub_(base).exp_()
            top, total = higher, total.mul_(shrink).add_(exp.sum(-1, keepdim=True))
            kept = None if self.dropout is None else self.dropout.kept(tile).view_as(exp)
            if self.probs is not None:
                self._write_probs(tile, exp, kept, total)
            if kept is not None:
                exp.mul_(kept)
            out.mul_(shrink.view(out.shape[0], -1, 1))
            self.products.add_times(out, self.products.narrow(exp).flatten(2, 3).flatten(0, 1), v[:, seen])
        factor = _share(total)
        if self.dropout is not None:
            factor.mul_(self.dropout.scale)
        out.mul_(factor.view(out.shape[0], -1, 1))
        lse = total.log_().add_(_finite(top))
        self.layout.write_queries(self.out, block, rows, self.scores.rows(out, block))
        self.layout.write_queries(self.lse, block, rows, lse[..., 0].permute(0, 3, 1, 2).flatten(2, 3))

    def _before_any_key(self, block: Block) -> tuple[Tensor, Tensor]:
        """The largest score of each row so far and the sum of exp(score - it): those of the sink, or of nothing."""
        shape = (block.sequences, self.layout.heads_k, self.layout.group, block.queries, 1)
        if self.p.sinks is None:
            top = torch.full(shape, float("-inf"), dtype=self.products.work, device=self.layout.device)
        else:
            top = self.scores.per_head(self.p.sinks, block).expand(shape).clone()
        return top, (top - _finite(top)).exp_()

    def _write_probs(self, block: Block, exp: Tensor, kept: Tensor | None, total: Tensor) -> None:
        signed = (exp if kept is None else torch.where(kept, exp, -exp)) * _share(total)
        self.scores.hide(signed, block, 0)  # dropout gives a sign to the zero of a hidden element
        part = self.probs[block.b0 : block.b1, :, block.i0 : block.i1, block.j0 : block.j1]
        part.copy_(signed.flatten(1, 2))


def _finite(top: Tensor) -> Tensor:
    """What is subtracted from scores of which top is the largest: where that is -inf each term is 0, whatever it is."""
    return top.masked_fill(top == float("-inf"), 0)


def _share(total: Tensor) -> Tensor:
    """1 / total; a row that sees nothing has nothing but zeros to divide."""
    return total.masked_fill(total == 0, 1).reciprocal_()
