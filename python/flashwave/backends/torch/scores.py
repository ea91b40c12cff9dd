"""Scores of a block: scale, softcap, bias, slopes and mask, the same for the forward and the backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .rotary import rotate_queries

if TYPE_CHECKING:
    from torch import Tensor

    from .blocks import Block, Tiling
    from .products import Products

# Tensors over pairs have five axes here: (sequences, heads_k, group, queries, keys). As operands of a product their
# first two axes are one, and so are the next two: the query heads of a key head are rows of one product.


class Scores:
    def __init__(self, tiling: Tiling, products: Products):
        self.tiling, self.products = tiling, products
        self.layout = tiling.layout
        self.p = self.layout.p
        self._head_shape = (self.layout.heads_k, self.layout.group)

    def operand(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """(sequences, queries, heads, dim) as an operand: (sequences * heads_k, group * queries, dim)."""
        by_head = rows.to(dtype).unflatten(2, self._head_shape).permute(0, 2, 3, 1, 4)
        return by_head.flatten(2, 3).flatten(0, 1)

    def rows(self, operand: Tensor, block: Block) -> Tensor:
        """The inverse of `operand`."""
        shape = (block.sequences, *self._head_shape, block.queries, operand.shape[-1])
        return operand.view(shape).permute(0, 3, 1, 2, 4).flatten(2, 3)

    def per_row(self, rows: Tensor) -> Tensor:
        """(sequences, queries, heads) as numbers of rows of pairs: (sequences, heads_k, group, queries, 1)."""
        return rows.to(self.products.work).unflatten(2, self._head_shape).permute(0, 2, 3, 1)[..., None]

    def per_head(self, heads: Tensor, block: Block) -> Tensor:
        """(heads) or (batch, heads) as numbers of heads of pairs."""
        if heads.dim() == 2:
            heads = heads[block.b0 : block.b1]
        return heads.to(self.products.work).unflatten(-1, self._head_shape)[..., None, None]

    def queries(self, block: Block, rows: tuple[Tensor, Tensor] | None) -> Tensor:
        """The operand of the block's queries: rotated, and with the scale where the products take it there."""
        q = self.layout.read_queries(self.p.q, block, rows)
        if self.p.rotary_cos is not None:
            q = rotate_queries(self.p, q, block, rows)
        q = self.operand(q, self.products.operand)
        return q if self.products.scale_of_q == 1 else q * self.products.scale_of_q

    def of_block(self, block: Block, q: Tensor, k: Tensor, want_slope: bool) -> tuple[Tensor, Tensor | None]:
        """Scores, -inf where a key is hidden, and the derivative of the softcap where there is one and it is wanted.

        k holds the keys of the block's range.
        """
        p = self.p
        shape = (block.sequences, *self._head_shape, block.queries, block.keys)
        s = self.products.times(q, k.transpose(1, 2)).view(shape)
        if self.products.scale_of_scores != 1:
            s.mul_(self.products.scale_of_scores)
        slope = None
        if p.softcap > 0:
            s.div_(p.softcap).tanh_()
            slope = s.square().neg_().add_(1) if want_slope else None
            s.mul_(p.softcap)
        if p.bias is not None:
            s.add_(self.part_of_bias(p.bias, block).unflatten(1, self._head_shape if p.bias.shape[1] > 1 else (1, 1)))
        if p.alibi_slopes is not None:
            s.addcmul_(self.per_head(p.alibi_slopes, block), self.distance(block), value=-1)
        self.hide(s, block, float("-inf"))
        return s, slope

    def part_of_bias(self, bias: Tensor, block: Block) -> Tensor:
        """The part of a tensor of bias's shape that the block uses. Axes of extent 1 are shared."""
        ranges = ((0, block.b0, block.b1), (2, block.i0, block.i1), (3, block.j0, block.j1))
        for axis, first, last in ranges:
            if bias.shape[axis] > 1:
                bias = bias.narrow(axis, first, last - first)
        return bias

    def distance(self, block: Block) -> Tensor:
        """|diagonal(i) - j|, (sequences or 1, 1, 1, queries, keys)."""
        j = torch.arange(block.j0, block.j1, device=self.layout.device)
        return (self._diagonal(block) - j).abs_().to(self.products.work)

    def hide(self, pairs: Tensor, block: Block, value: float) -> None:
        """Overwrites what is not visible."""
        for columns, hidden in self._hidden(block):
            pairs[..., columns].masked_fill_(hidden, value)

    def _diagonal(self, block: Block) -> Tensor:
        offset = self.layout.offset
        i = torch.arange(block.i0, block.i1, device=self.layout.device)[:, None]
        return i + (offset if isinstance(offset, int) else offset[block.b0 : block.b1].view(-1, 1, 1, 1, 1))

    def _hidden(self, block: Block) -> Iterator[tuple[slice, Tensor]]:
        """Ranges of columns (counted from j0) that hide something from some query, and what."""
        left, right = self.tiling.left, self.tiling.right
        layout = self.layout
        if layout.keys is None and layout.queries is None:
            # Each side's corner alone: most of a block lies between the two.
            if right is not None:
                first = max(block.j0, block.i0 + layout.offset + right + 1)
                if first < block.j1:
                    j = torch.arange(first, block.j1, device=layout.device)
                    yield slice(first - block.j0, None), j > self._diagonal(block) + right
            if left is not None:
                last = min(block.j1, block.i1 - 1 + layout.offset - left)
                if block.j0 < last:
                    j = torch.arange(block.j0, last, device=layout.device)
                    yield slice(0, last - block.j0), j < self._diagonal(block) - left
            return
        j = torch.arange(block.j0, block.j1, device=layout.device)
        hidden = []
        if layout.keys is not None:
            hidden.append(j >= layout.keys[block.b0 : block.b1].view(-1, 1, 1, 1, 1))
        if layout.queries is not None:
            # A row that does not exist has a bias all the same, and that may hold anything.
            i = torch.arange(block.i0, block.i1, device=layout.device)[:, None]
            hidden.append(i >= layout.queries[block.b0 : block.b1].view(-1, 1, 1, 1, 1))
        if right is not None:
            hidden.append(j > self._diagonal(block) + right)
        if left is not None:
            hidden.append(j < self._diagonal(block) - left)
        whole = hidden[0]
        for part in hidden[1:]:
            whole = whole | part
        yield slice(None), whole
