"""One attention as plain data: the arguments that every backend of the package understands.

`Problem` is to Python what `fw_attention` is to C (docs/semantics.md gives the mathematics). Its fields, in order, are
also the arguments of the custom operators, so that a problem can be handed to them with ``*problem``.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Problem(NamedTuple):
    """Tensors, then scalars. Shapes: b batch, h heads, hk heads of k and v, d dim of q and k, dv dim of v."""

    q: Tensor  # (b, sq, h, d), or (total_q, h, d) with cu_seqlens_q
    k: Tensor  # (b, sk, hk, d), (total_k, hk, d) with cu_seqlens_k, (pages, page_size, hk, d) with block_table
    v: Tensor  # as k, but dv
    cu_seqlens_q: Tensor | None = None  # (b + 1) int32
    cu_seqlens_k: Tensor | None = None  # (b + 1) int32; with block_table only the lengths count
    seqused_k: Tensor | None = None  # (b) int32: keys in use, before an append
    leftpad_k: Tensor | None = None  # (b) int32: keys skipped at the start
    cache_batch_idx: Tensor | None = None  # (b) int32: row of k and v that a sequence uses
    block_table: Tensor | None = None  # (b, blocks) int32
    alibi_slopes: Tensor | None = None  # (h) or (b, h) float32
    bias: Tensor | None = None  # 4-D, each extent that of (b, h, sq, sk) or 1; float32 or q's dtype
    sinks: Tensor | None = None  # (h) float32
    rng_state: Tensor | None = None  # (2) int64 on q's device or the CPU: seed and offset of the dropout
    max_seqlen_q: int = 0  # sq, or the longest sequence with cu_seqlens_q
    max_seqlen_k: int = 0  # sk, the longest with cu_seqlens_k, or what a row of block_table can address
    softmax_scale: float | None = None  # None: 1 / sqrt(d)
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    dropout_p: float = 0.0
    num_splits: int = 0
    deterministic: bool = False
    # Append to a cache (forward only). Absent from the operators that do not append.
    k_new: Tensor | None = None  # (b, s_new, hk, d)
    v_new: Tensor | None = None  # (b, s_new, hk, dv)
    rotary_cos: Tensor | None = None  # (positions, rotary_dim / 2), float32 or q's dtype
    rotary_sin: Tensor | None = None
    rotary_interleaved: bool = False

    @property
    def scale(self) -> float:
        return self.softmax_scale if self.softmax_scale is not None else self.q.shape[-1] ** -0.5

    @property
    def window(self) -> tuple[int | None, int | None]:
        """Keys seen left and right of the diagonal; None: no limit."""
        left = self.window_left if self.window_left >= 0 else None
        right = self.window_right if self.window_right >= 0 else None
        return left, 0 if self.causal else right

    @property
    def dropout_threshold(self) -> int:
        """Of 16 random bits: below it an element is dropped. The C ABI takes dropout_p as a float, so that a p beside
        a tie must round as it does there.
        """
        (single,) = struct.unpack("f", struct.pack("f", self.dropout_p))
        return math.floor(single * 65536 + 0.5)

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1


class Piece(NamedTuple):
    """Where the sequences of a problem lie in longer ones, and what dropout counts its heads as (docs/semantics.md)."""

    position_q: int | None = None  # None: the last query is at the last key, as ever
    position_k: int | None = None
    dropout_first: int = 0
    dropout_heads: int = 0  # 0: those of q


TENSOR_FIELDS = (*Problem._fields[:13], "k_new", "v_new", "rotary_cos", "rotary_sin")
APPEND_FIELDS = Problem._fields[23:]
FORWARD_FIELDS = Problem._fields[:23]
NAMES_OF_GRADIENTS = ("q", "k", "v", "alibi_slopes", "bias", "sinks")
