"""The backward by hand: P recomputed from lse, a tile at a time, whose parts of the gradients are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .blocks import Block, Tiling
from .layout import Layout
from .philox import Dropout
from .products import Products, plain_arithmetic
from .scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Piece, Problem


def backward(
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: Sequence[bool],
    *,
    products: torch.dtype | None = None,
    round_toward_zero: bool = False,
    piece: Piece | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of (q, k, v, alibi_slopes, bias, sinks), each None unless needed. out and lse are the forward's."""
    for name, tensor, needed in zip(("alibi_slopes", "bias", "sinks"), problem[9:12], needs[3:]):
        if needed and tensor is None:
            raise ValueError(f"needs asks for the gradient of {name}, which the problem does not have")
    arithmetic = Products(problem.q.dtype, products, round_toward_zero, problem.scale)
    with plain_arithmetic(problem.q.device):
        return _Backward(problem, arithmetic, dout, dlse, out, lse, needs, piece).run()


class _Backward:
    def __init__(
        self,
        problem: Problem,
        products: Products,
        dout: Tensor,
        dlse: Tensor | None,
        out: Tensor,
        lse: Tensor,
        needs: Sequence[bool],
        piece: Piece | None,
    ):
        self.p, self.products = problem, products
        self.dout, self.out = dout, out
        self.lse = lse.transpose(-1, -2)  # as q's rows: (.., queries, heads)
        self.dlse = None if dlse is None else dlse.transpose(-1, -2)
        self.layout = layout = Layout(problem, piece)
        self.tiling = Tiling(layout)
        self.scores = Scores(self.tiling, products)
        self.dropout = Dropout(problem, piece) if problem.dropout_p > 0 else None

        need_q, need_k, need_v, need_slopes, need_bias, need_sinks = needs
        self.needs_ds = need_q or need_k or need_slopes or need_bias
        # The gradients themselves; those that blocks add to are in the working type.
        self.dq = layout.query_output(problem.q.shape[-1], problem.q.dtype, 0) if need_q else None
        self.dk = layout.key_output(problem.k) if need_k else None
        self.dv = layout.key_output(problem.v) if need_v else None
        self.dslopes = self._zeros_like(problem.alibi_slopes) if need_slopes else None
        self.dbias = self._zeros_like(problem.bias) if need_bias else None
        self.dsinks = self._zeros_like(problem.sinks) if need_sinks else None

    def _zeros_like(self, tensor: Tensor) -> Tensor:
        return torch.zeros(tensor.shape, dtype=self.products.work, device=self.layout.device)

    def run(self) -> tuple[Tensor | None, ...]:
        p, layout = self.p, self.layout
        for b0, b1 in self.tiling.groups():
            self._group(b0, b1)
        return (
            None if self.dq is None else layout.finish_queries(self.dq),
            None if self.dk is None else layout.finish_keys(self.dk, p.k),
            None if self.dv is None else layout.finish_keys(self.dv, p.v),
            None if self.dslopes is None else self.dslopes.to(p.alibi_slopes.dtype),
            None if self.dbias is None else self.dbias.to(p.bias.dtype),
            None if self.dsinks is None else self.dsinks.to(p.sinks.dtype),
        )

    def _group(self, b0: int, b1: int) -> None:
        layout = self.layout
        k = layout.read_keys(self.p.k, b0, b1, self.products.operand)
        v = layout.read_keys(self.p.v, b0, b1, self.products.operand) if self.needs_ds else None
        dk = None if self.dk is None else torch.zeros(k.shape, dtype=self.products.work, device=k.device)
        v_shape = (*k.shape[:2], self.p.v.shape[-1])
        dv = None if self.dv is None else torch.zeros(v_shape, dtype=self.products.work, device=k.device)
        for block in self.tiling.blocks(b0, b1):
            self._block(block, k, v, dk, dv)
        if dk is not None:
            layout.write_keys(self.dk, b0, b1, dk.mul_(self.products.scale_of_scores))
        if dv is not None:
            layout.write_keys(self.dv, b0, b1, dv if self.dropout is None else dv.mul_(self.dropout.scale))

    def _block(self, block: Block, k: Tensor, v: Tensor | None, dk: Tensor | None, dv: Tensor | None) -> None:
        scores, products = self.scores, self.products
        rows = self.layout.query_rows(block)
        do = self.layout.read_queries(self.dout, block, rows)
        lse, delta = self._lse_and_delta(block, rows, do)
        if self.dsinks is not None:
            share = scores.per_head(self.p.sinks, block).sub(lse).exp_()
            self.dsinks -= share.mul_(delta).sum((0, 3, 4)).flatten()
        do, q = scores.operand(do, products.operand), scores.queries(block, rows)
        dq = None
        if self.dq is not None:
            dq = torch.zeros(q.shape, dtype=products.work, device=q.device)
        for tile in self.tiling.tiles(block):
            seen = slice(tile.j0, tile.j1)
            keys = [None if tensor is None else tensor[:, seen] for tensor in (k, v, dk, dv)]
            self._tile(tile, q, do, lse, delta, dq, *keys)
        if dq is not None:
            self.layout.write_queries(self.dq, block, rows, scores.rows(dq.mul_(self.p.scale), block))

    def _tile(
        self,
        tile: Block,
        q: Tensor,
        do: Tensor,
        lse: Tensor,
        delta: Tensor,
        dq: Tensor | None,
        k: Tensor,
        v: Tensor | None,
        dk: Tensor | None,
        dv: Tensor | None,
    ) -> None:
        """Adds the tile's part to dq, dk and dv, which are the tile's own, and to the other gradients."""
        products = self.products
        s, slope = self.scores.of_block(tile, q, k, want_slope=self.needs_ds)
        s.sub_(lse)
        if self.p.bias is not None:  # next to a large one lse, in fp32, is coarse: P is never more than 1 for all that
            s.clamp_(max=0.0)
        prob = s.exp_()
        kept = None if self.dropout is None else self.dropout.kept(tile).view_as(prob)
        if dv is not None:
            used = prob if kept is None else prob * kept
            products.add_times(dv, _operand(products.narrow(used)).transpose(1, 2), do)
        if not self.needs_ds:
            return
        ds = products.times(do, v.transpose(1, 2)).view_as(prob)
        if kept is not None:
            ds.mul_(kept).mul_(self.dropout.scale)
        ds.sub_(delta).mul_(prob)
        self._add_to_slopes_and_bias(tile, ds)
        if slope is not None:
            ds.mul_(slope)
        dz = _operand(products.narrow(ds))
        if dq is not None:
            products.add_times(dq, dz, k)
        if dk is not None:
            products.add_times(dk, dz.transpose(1, 2), q)

    def _lse_and_delta(self, block: Block, rows: tuple[Tensor, Tensor] | None, do: Tensor) -> tuple[Tensor, Tensor]:
        """Per row of pairs: lse, +inf for rows that see nothing or do not exist (P is 0 then), and delta."""
        layout, work = self.layout, self.products.work
        lse = layout.read_queries(self.lse, block, rows, fill=float("-inf"))
        o = layout.read_queries(self.out, block, rows)
        delta = (do.to(work) * o.to(work)).sum(-1)
        if self.dlse is not None:
            delta -= layout.read_queries(self.dlse, block, rows)
        empty = lse == float("-inf")
        lse, delta = lse.masked_fill(empty, float("inf")), delta.masked_fill(empty, 0)
        return self.scores.per_row(lse), self.scores.per_row(delta)

    def _add_to_slopes_and_bias(self, block: Block, ds: Tensor) -> None:
        if self.dslopes is not None:
            total = (ds * self.scores.distance(block)).sum((-1, -2)).flatten(1)  # (sequences, heads)
            if self.dslopes.dim() == 2:
                self.dslopes[block.b0 : block.b1] -= total
            else:
                self.dslopes -= total.sum(0)
        if self.dbias is not None:
            pairs = ds.flatten(1, 2)
            shared = [axis for axis in range(4) if self.dbias.shape[axis] == 1 and pairs.shape[axis] != 1]
            part = self.scores.part_of_bias(self.dbias, block)
            part += pairs.sum(shared, keepdim=True) if shared else pairs


def _operand(pairs: Tensor) -> Tensor:
    return pairs.flatten(2, 3).flatten(0, 1)
