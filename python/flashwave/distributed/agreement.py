"""All processes of a group call with the same kind of arguments, or all of them raise.

Before data is exchanged, the processes gather a few numbers from one another: what a call looks like, and whether its
arguments broke a rule. So a mistake on one of them is an error on all of them, and nobody waits for data that never
comes. A process that dies later, or fails in its own part of the work, is noticed by the backend's timeout.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ..errors import InvalidArgument
from .layout import Ring

Tensor = torch.Tensor

_TEXT_WORDS = 32  # 8 bytes each, of a message
_SHAPE_WORDS = 6
_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4}
# Labels, positions and masks are put together, too.
_DTYPES |= {torch.bool: 5, torch.uint8: 6, torch.int8: 7, torch.int16: 8, torch.int32: 9, torch.int64: 10}
_NAMES = {number: str(dtype) for dtype, number in _DTYPES.items()}


@contextmanager
def collecting_errors() -> Any:
    """Keeps the first error of its body, of whatever kind, for `agree` to tell everybody."""
    kept: list[Exception] = []
    try:
        yield kept
    except Exception as error:
        kept.append(error)


def _words_of(text: str) -> list[int]:
    data = text.encode()[: 8 * _TEXT_WORDS].ljust(8 * _TEXT_WORDS, b"\0")
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)]


def _text_of(words: list[int]) -> str:
    data = b"".join(word.to_bytes(8, "little", signed=True) for word in words)
    return data.rstrip(b"\0").decode(errors="replace")


def _described(tensor: Any) -> list[int]:
    if not isinstance(tensor, Tensor):
        return [0] * (_SHAPE_WORDS + 2)
    shape = list(tensor.shape)[:_SHAPE_WORDS]
    return [_DTYPES.get(tensor.dtype, -1), len(tensor.shape), *shape, *[-1] * (_SHAPE_WORDS - len(shape))]


def _in_words(numbers: list[int]) -> str:
    if numbers[1] == 0 and numbers[0] == 0:
        return "nothing"
    shape = tuple(numbers[2 : 2 + numbers[1]])
    return f"{shape}, {_NAMES.get(numbers[0], 'another dtype')}"


def agree(
    ring: Ring,
    options: Mapping[str, Any],
    tensors: Mapping[str, Tensor | None],
    error: Exception | None,
    draw: tuple[int, int] = (0, 0),
) -> tuple[int, int]:
    """Raises on every process if an error occurred on one, or if they differ in options or in shapes and dtypes.

    Returns the first process' draw, two 64-bit numbers. Where a process has no such tensor at all its error says why.
    """
    if ring.size == 1:
        if error is not None:
            raise error
        return draw
    device = next((t.device for t in tensors.values() if isinstance(t, Tensor)), torch.device("cpu"))
    if dist.get_backend(ring.group) == "nccl":
        device = torch.device("cuda", torch.cuda.current_device()) if device.type != "cuda" else device
    elif device.type == "cuda":
        device = torch.device("cpu")
    own = [error is not None, *draw]
    own += [zlib.crc32(repr(value).encode()) for value in options.values()]
    for tensor in tensors.values():
        own += _described(tensor)
    head = len(own)
    own += _words_of(f"{type(error).__name__}: {error}" if error is not None else "")
    mine = torch.tensor(own, dtype=torch.int64, device=device)
    # Lengths must agree for the gathering itself: they depend on the function that is called alone.
    rows = [torch.empty_like(mine) for _ in range(ring.size)]
    dist.all_gather(rows, mine, group=ring.group)
    everybody = torch.stack(rows).tolist()
    if error is not None:
        raise error
    for rank, row in enumerate(everybody):
        if row[0]:
            raise InvalidArgument(f"process {rank} of the group failed: {_text_of(row[head:])}")
    at = 3
    for name in options:
        column = [row[at] for row in everybody]
        at += 1
        if len(set(column)) > 1:
            other = next(rank for rank, value in enumerate(column) if value != column[0])
            raise InvalidArgument(f"{name} must be the same on all processes of the group; 0 and {other} differ")
    width = _SHAPE_WORDS + 2
    for name in tensors:
        described = [row[at : at + width] for row in everybody]
        at += width
        for rank, numbers in enumerate(described):
            if numbers != described[0]:
                raise InvalidArgument(
                    f"{name} must have the same shape and dtype on all processes of the group, got "
                    f"{_in_words(described[0])} on process 0 and {_in_words(numbers)} on process {rank}: shards "
                    "are equal"
                )
    return everybody[0][1], everybody[0][2]
