"""Which elements dropout keeps: the library's Philox-4x32-7 stream, on the device, as docs/semantics.md defines it.

Words are unsigned 32-bit numbers held in int64. A product of two of them wraps around in int64, whose bits are still
those of the unsigned product: masking off what a shift of the sign brings in gives both halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Piece, Problem
    from .blocks import Block

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 7
_LOW = 0xFFFFFFFF
_KEYS_PER_CALL = 8


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four output words. Counters broadcast, so that the first rounds work on rows and columns, not on elements."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((b >> 32) & _LOW) ^ (c1 ^ k0), b & _LOW
        c2, c3 = ((a >> 32) & _LOW) ^ (c3 ^ k1), a & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


class Dropout:
    """The mask of a problem, a block at a time. The seed and the offset stay where they are, on the device or the CPU:

    as tensors without dimensions those of the CPU join operations on any device.
    """

    def __init__(self, problem: Problem, piece: Piece | None = None):
        if problem.rng_state is None:
            raise ValueError("rng_state must be given with dropout_p > 0: it holds the seed and the offset")
        self.heads = problem.q.shape[-2]
        first_query, first_key, self._first_head, heads = piece or (0, 0, 0, 0)
        self._first_query, self._first_key = first_query or 0, first_key or 0
        self._heads_of_a_sequence = heads or self.heads
        self.scale = 1.0 / (1.0 - problem.dropout_p)
        self._threshold = problem.dropout_threshold
        self._device = problem.q.device
        seed, offset = problem.rng_state[0], problem.rng_state[1]
        self._offset_low = offset & _LOW
        self._key = (seed & _LOW, ((seed >> 32) ^ (offset >> 32)) & _LOW)

    def kept(self, block: Block) -> Tensor:
        """(sequences, heads, queries, keys) bool: True where the element stays."""
        device = self._device
        j0, j1 = block.j0 + self._first_key, block.j1 + self._first_key
        first, last = j0 // _KEYS_PER_CALL, -(-j1 // _KEYS_PER_CALL)
        calls = torch.arange(first, last, device=device)
        queries = torch.arange(block.i0 + self._first_query, block.i1 + self._first_query, device=device)[:, None]
        heads = torch.arange(self._first_head, self._first_head + self.heads, device=device)
        heads = heads + self._heads_of_a_sequence * torch.arange(block.b0, block.b1, device=device)[:, None]
        heads = heads.view(block.sequences, self.heads, 1, 1)
        words = philox((calls, queries, heads, self._offset_low), self._key)
        shape = (block.sequences, self.heads, block.queries, last - first, _KEYS_PER_CALL)
        kept = torch.empty(shape, dtype=torch.bool, device=device)
        for at, word in enumerate(words):
            kept[..., 2 * at] = (word & 0xFFFF) >= self._threshold
            kept[..., 2 * at + 1] = (word >> 16) >= self._threshold
        start = j0 - first * _KEYS_PER_CALL
        return kept.flatten(-2)[..., start : start + block.keys]
