"""How the work is cut: groups of sequences, whose keys are held padded, blocks of their queries, tiles of their keys.

A tile's scores, (sequences, heads, queries, keys), are the largest thing there is. They have at most `score_budget`
elements (or one pair of each head), and a handful of such tensors is alive at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from .layout import Layout

# Enough to keep an accelerator busy; on a CPU, little enough to stay in its caches.
_BUDGET, _BUDGET_CPU = 1 << 26, 1 << 20
_QUERIES_OF_A_BLOCK = 128  # more hardly makes the products faster, and hides less behind the diagonal


class Block(NamedTuple):
    """Queries i0 .. i1-1 of sequences b0 .. b1-1, and the range of keys that holds all they see, or a tile of it."""

    b0: int
    b1: int
    i0: int
    i1: int
    j0: int
    j1: int

    @property
    def sequences(self) -> int:
        return self.b1 - self.b0

    @property
    def queries(self) -> int:
        return self.i1 - self.i0

    @property
    def keys(self) -> int:
        return self.j1 - self.j0


def score_budget(q: Tensor) -> int:
    """Elements of a tile's scores. A share of q, so that long sequences are cut into fewer tiles."""
    return max(_BUDGET_CPU if q.device.type == "cpu" else _BUDGET, q.numel() // 8)


class Tiling:
    def __init__(self, layout: Layout, whole_rows: bool = False):
        """whole_rows: a block is one tile, of as few queries as that takes."""
        self.layout = layout
        self.left, self.right = layout.p.window
        budget = score_budget(layout.p.q)
        wanted = max(1, min(layout.max_queries, _QUERIES_OF_A_BLOCK))
        highest = layout.max_queries
        width = max(1, layout.max_keys)  # of the keys that a block may see
        if isinstance(layout.offset, int) and self.right is not None:
            # A block sees what any of its queries sees: its height adds work behind the diagonal.
            highest = max(wanted, layout.max_queries // 8)
            if self.left is not None:
                highest = max(wanted, self.left + self.right)
                width = min(width, self.left + self.right + highest)
        heads, row = layout.heads, layout.heads_k * max(layout.p.k.shape[-1], layout.p.v.shape[-1])
        sequences = min(layout.batch, budget // (heads * wanted * width), budget // (row * max(1, layout.max_keys)))
        self._sequences = max(1, sequences)
        self._queries = max(1, min(highest, budget // (self._sequences * heads * width)))
        self._keys = max(1, layout.max_keys)
        if self._queries < wanted and not whole_rows:
            # Products of few rows keep no machine busy: better few keys of many rows.
            self._queries = max(1, min(wanted, budget // (self._sequences * heads)))
            self._keys = max(1, budget // (self._sequences * heads * self._queries))

    def groups(self) -> Iterator[tuple[int, int]]:
        for b0 in range(0, self.layout.batch, self._sequences):
            yield b0, min(b0 + self._sequences, self.layout.batch)

    def blocks(self, b0: int, b1: int) -> Iterator[Block]:
        for i0 in range(0, self.layout.max_queries, self._queries):
            i1 = min(i0 + self._queries, self.layout.max_queries)
            yield Block(b0, b1, i0, i1, *self._seen(i0, i1))

    def tiles(self, block: Block) -> Iterator[Block]:
        """The block by ranges of keys; none if it sees no key."""
        for j0 in range(block.j0, block.j1, self._keys):
            yield block._replace(j0=j0, j1=min(j0 + self._keys, block.j1))

    def _seen(self, i0: int, i1: int) -> tuple[int, int]:
        keys, offset = self.layout.max_keys, self.layout.offset
        if not isinstance(offset, int):
            return 0, keys
        first = 0 if self.left is None else min(max(0, i0 + offset - self.left), keys)
        last = keys if self.right is None else min(keys, i1 + offset + self.right)
        return first, max(first, last)
