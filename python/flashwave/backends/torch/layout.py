"""Where the rows of a sequence lie, for every layout; how they are read into padded blocks and results written back.

Blocks are padded: (sequences, rows, heads, dim), rows counted from the first query or the first key after the left pad.
Rows beyond a sequence's length are 0 when read, whatever memory holds there, and are dropped when written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Piece, Problem
    from .blocks import Block


class Layout:
    """Lengths and addresses of a problem. What depends on lengths in device memory stays there."""

    def __init__(self, problem: Problem, piece: Piece | None = None):
        self.p = p = problem
        self.piece = piece
        self.device = p.q.device
        self.batch = p.batch
        self.heads, self.heads_k = p.q.shape[-2], p.k.shape[-2]
        self.group = self.heads // self.heads_k
        self.packed_q = p.cu_seqlens_q is not None
        self.paged = p.block_table is not None
        self.packed_k = p.cu_seqlens_k is not None and not self.paged
        # What no row can be beyond, so that a bound given generously costs nothing.
        self.max_queries = min(p.max_seqlen_q, p.q.shape[0]) if self.packed_q else p.q.shape[1]
        self.max_keys = self._max_keys()

        self.queries: Tensor | None = _differences(p.cu_seqlens_q)  # (b); None: all max_queries
        self.keys: Tensor | None = self._key_counts()  # (b); None: all max_keys
        # keys - queries, or what positions make of it: an int where all share a known one
        self.offset: int | Tensor = self._diagonal_offset()

    def _max_keys(self) -> int:
        p = self.p
        if self.paged:
            addressable = p.block_table.shape[1] * p.k.shape[1] if p.k.shape[0] > 0 else 0
            return min(p.max_seqlen_k, addressable)
        return min(p.max_seqlen_k, p.k.shape[0]) if self.packed_k else p.k.shape[1]

    def _key_counts(self) -> Tensor | None:
        p = self.p
        if p.seqused_k is None and p.cu_seqlens_k is None and p.leftpad_k is None:
            return None
        if p.seqused_k is not None:
            count = p.seqused_k.long()
        elif p.cu_seqlens_k is not None:
            count = _differences(p.cu_seqlens_k)
        else:
            count = torch.full((self.batch,), p.max_seqlen_k, dtype=torch.long, device=self.device)
        if p.k_new is not None:
            count = count + p.k_new.shape[1]
        if p.leftpad_k is not None:
            count = count - p.leftpad_k
        return count.clamp(min=0)

    def _diagonal_offset(self) -> int | Tensor:
        p = self.p
        if self.piece is not None and self.piece.position_q is not None:
            return self.piece.position_q - self.piece.position_k
        if self.queries is None and self.keys is None:
            return self.max_keys - self.max_queries
        ragged_alike = self.queries is not None and p.cu_seqlens_q is p.cu_seqlens_k
        if ragged_alike and p.seqused_k is None and p.leftpad_k is None:
            return 0  # one tensor of offsets for both: self-attention
        keys = self.max_keys if self.keys is None else self.keys
        return keys - (self.max_queries if self.queries is None else self.queries)

    def _column(self, first: int, last: int) -> Tensor:
        return torch.arange(first, last, device=self.device)

    # Queries ----------------------------------------------------------------------------------------------------------

    def query_rows(self, block: Block) -> tuple[Tensor, Tensor] | None:
        """Packed rows of a block's queries and which of them exist, (sequences, queries) each; None if not packed."""
        if not self.packed_q:
            return None
        i = self._column(block.i0, block.i1)
        rows = self.p.cu_seqlens_q[block.b0 : block.b1, None] + i
        return rows, i < self.queries[block.b0 : block.b1, None]

    def read_queries(self, tensor: Tensor, block: Block, rows: tuple[Tensor, Tensor] | None, fill: float = 0) -> Tensor:
        """A block of a tensor laid out as q; lse too, seen as (.., queries, heads). Rows that do not exist: `fill`."""
        if rows is None:
            return tensor[block.b0 : block.b1, block.i0 : block.i1]
        at, exists = rows
        read = tensor[torch.where(exists, at, 0)]
        return read.masked_fill_(~_like(exists, read), fill)

    def query_output(self, dim: int | None, dtype: torch.dtype, fill: float) -> Tensor:
        """A tensor laid out as q for results; packed ones have one row more, for what `write_queries` drops."""
        shape = (self.heads,) if dim is None else (self.heads, dim)
        if self.packed_q:
            return torch.full((self.p.q.shape[0] + 1, *shape), fill, dtype=dtype, device=self.device)
        return torch.empty((self.batch, self.max_queries, *shape), dtype=dtype, device=self.device)

    def write_queries(self, output: Tensor, block: Block, rows: tuple[Tensor, Tensor] | None, values: Tensor) -> None:
        if rows is None:
            output[block.b0 : block.b1, block.i0 : block.i1] = values
        else:
            _write_rows(output, *rows, values)

    def finish_queries(self, output: Tensor) -> Tensor:
        return output[:-1] if self.packed_q else output

    # Keys -------------------------------------------------------------------------------------------------------------

    def key_address(self, b0: int, b1: int, row: Tensor) -> tuple[Tensor, ...]:
        """Index of rows (sequences, n) of the sequences' storage, left pad counted, in k or v."""
        p = self.p
        if self.paged:
            page_size = p.k.shape[1]
            return p.block_table[b0:b1].long().gather(1, row // page_size), row % page_size
        if self.packed_k:
            return (p.cu_seqlens_k[b0:b1, None] + row,)
        at = self._column(b0, b1) if p.cache_batch_idx is None else p.cache_batch_idx[b0:b1].long()
        return at[:, None], row

    def _key_rows(self, b0: int, b1: int) -> tuple[Tensor, Tensor]:
        """Storage rows of keys 0, 1, .. of each sequence and which of them exist, (sequences, max_keys) each."""
        j = self._column(0, self.max_keys).expand(b1 - b0, -1)
        row = j if self.p.leftpad_k is None else self.p.leftpad_k[b0:b1, None] + j
        exists = torch.ones_like(j, dtype=torch.bool) if self.keys is None else j < self.keys[b0:b1, None]
        return row, exists

    def read_keys(self, tensor: Tensor, b0: int, b1: int, dtype: torch.dtype) -> Tensor:
        """k or v of some sequences by head: (sequences * heads_k, max_keys, dim), contiguous."""
        row, exists = self._key_rows(b0, b1)
        if self.max_keys == 0:
            read = tensor.new_empty((b1 - b0, 0, *tensor.shape[-2:]))
        elif self.paged or self.packed_k or self.p.cache_batch_idx is not None or self.p.leftpad_k is not None:
            address = self.key_address(b0, b1, torch.where(exists, row, 0))
            # A row of no key may have no page either, or start where a packed tensor ends.
            first = torch.where(exists, address[0], 0) if self.paged or self.packed_k else address[0]
            read = tensor[(first, *address[1:])]
        else:
            read = tensor[b0:b1]
        if self.keys is not None:
            read = read.masked_fill(~_like(exists, read), 0)
        return read.transpose(1, 2).to(dtype).contiguous().flatten(0, 1)

    def key_output(self, like: Tensor) -> Tensor:
        """Rows for the gradient of k or v, one row more than it has."""
        rows = like.shape[0] if self.packed_k else like.shape[0] * like.shape[1]
        return torch.zeros((rows + 1, *like.shape[-2:]), dtype=like.dtype, device=self.device)

    def write_keys(self, output: Tensor, b0: int, b1: int, values: Tensor) -> None:
        """values as `read_keys` gives them. Rows of no key keep the 0 they have."""
        row, exists = self._key_rows(b0, b1)
        first = self.p.cu_seqlens_k[b0:b1] if self.packed_k else self._column(b0, b1) * self.max_keys
        by_row = values.unflatten(0, (b1 - b0, self.heads_k)).transpose(1, 2)
        _write_rows(output, first[:, None] + row, exists, by_row)

    def finish_keys(self, output: Tensor, like: Tensor) -> Tensor:
        return output[:-1].view(like.shape)


def _differences(offsets: Tensor | None) -> Tensor | None:
    return None if offsets is None else (offsets[1:] - offsets[:-1]).long()


def _like(flags: Tensor, rows: Tensor) -> Tensor:
    return flags.view(flags.shape + (1,) * (rows.dim() - flags.dim()))


def _write_rows(output: Tensor, rows: Tensor, exists: Tensor, values: Tensor) -> None:
    """Rows that do not exist fall on the last row of the output, which is thrown away; the others are distinct."""
    output.index_put_((torch.where(exists, rows, output.shape[0] - 1),), values.to(output.dtype))
