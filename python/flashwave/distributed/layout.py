"""Which tokens of a sequence, or of a stream of packed sequences, a process holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported

Tensor = torch.Tensor

# contiguous: process r of W holds the r-th of W equal parts. zigzag: the r-th and the (2W - 1 - r)-th of 2W, so that
# under a causal mask all have equally much to do.
LAYOUTS = ("zigzag", "contiguous")


class Span(NamedTuple):
    """Tokens start .. start+length-1 of the whole, in rows row .. row+length-1 of a tensor."""

    start: int
    length: int
    row: int

    @property
    def end(self) -> int:
        return self.start + self.length


class Ring(NamedTuple):
    """A process group, seen from one of its processes."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def peer(self, distance: int) -> int:
        """The global rank of the process so many places further on."""
        rank = (self.rank + distance) % self.size
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def ring_of(group: dist.ProcessGroup | None) -> Ring:
    """The group, torch's default one for None. Without any torch.distributed there is one process."""
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise Unsupported("group is given, but torch.distributed is not initialised: call init_process_group first")
        return Ring(None, 0, 1)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise InvalidArgument("group must be one that this process belongs to")
    return Ring(group, rank, size)


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def spans(layout: str, rank: int, size: int, rows: int) -> list[Span]:
    """What process `rank` of `size` holds of rows * size tokens."""
    if layout == "contiguous" or size == 1:
        return [Span(rank * rows, rows, 0)]
    half = rows // 2
    return [Span(rank * half, half, 0), Span((2 * size - 1 - rank) * half, half, half)]


def check_rows(layout: str, size: int, rows: int, what: str = "q") -> None:
    """Of a shard."""
    check_layout(layout)
    if layout == "zigzag" and size > 1 and rows % 2:
        raise InvalidArgument(
            f"the shard of {what} must have an even number of tokens with layout='zigzag' (it is two parts of the "
            f"sequence), got {rows}"
        )


def _check_dim(x: Tensor, dim: int) -> None:
    if not isinstance(x, Tensor) or not -x.dim() <= dim < x.dim():
        given = f"dimensions {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InvalidArgument(f"x must be a tensor with tokens along dimension {dim}, got {given}")


def _parts(x: Tensor, dim: int, layout: str, size: int) -> list[Tensor]:
    """The shards of all processes, each as the parts it consists of."""
    _check_dim(x, dim)
    check_layout(layout)
    parts = size if layout == "contiguous" or size == 1 else 2 * size
    if x.shape[dim] % parts:
        raise InvalidArgument(
            f"dimension {dim} of x must be divisible by {parts} (layout={layout!r} on {size} processes), got "
            f"{x.shape[dim]}: pad the sequence"
        )
    return list(x.chunk(parts, dim)) if x.shape[dim] else [x] * parts


def shard(x: Tensor, dim: int = 1, group: dist.ProcessGroup | None = None, layout: str = "zigzag") -> Tensor:
    """This process' tokens of x, which every process has whole. No communication; the gradient is 0 elsewhere.

    Arguments:
        x: any tensor with tokens along `dim`: embeddings, labels, positions. Packed sequences have dim=0.
        group: a torch.distributed process group; None is the default one
        layout: "zigzag" (two parts, from both ends: equal work under a causal mask) or "contiguous"
    """
    ring = ring_of(group)
    parts = _parts(x, dim, layout, ring.size)
    if len(parts) == ring.size:
        return parts[ring.rank].contiguous()
    return torch.cat([parts[ring.rank], parts[-1 - ring.rank]], dim)


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dim: int, ring: Ring, layout: str) -> Tensor:  # type: ignore[override]
        ctx.dim, ctx.ring, ctx.layout = dim, ring, layout
        shards = [torch.empty_like(x) for _ in range(ring.size)]
        dist.all_gather(shards, x, group=ring.group)
        return in_order(shards, dim, layout)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple:  # type: ignore[override]
        # Every process has the whole, and a gradient of it; the shard is part of all of them.
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.ring.group)
        parts = _parts(total, ctx.dim, ctx.layout, ctx.ring.size)
        rank = ctx.ring.rank
        own = parts[rank] if len(parts) == ctx.ring.size else torch.cat([parts[rank], parts[-1 - rank]], ctx.dim)
        return own, None, None, None


def in_order(shards: list[Tensor], dim: int, layout: str) -> Tensor:
    """The whole of the shards of all processes."""
    if layout == "contiguous" or len(shards) == 1:
        return torch.cat(shards, dim)
    halves = [shard.chunk(2, dim) for shard in shards]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], dim)


def unshard(x: Tensor, dim: int = 1, group: dist.ProcessGroup | None = None, layout: str = "zigzag") -> Tensor:
    """The whole of what `shard` took apart, on every process. Its gradient is the sum of those of all processes."""
    from .agreement import agree, collecting_errors

    ring = ring_of(group)
    with collecting_errors() as errors:
        _check_dim(x, dim)
        check_rows(layout, ring.size, x.shape[dim], "x")
    agree(ring, {"layout": layout, "dim": dim}, {"x": x}, errors[0] if errors else None)
    if ring.size == 1:
        return x
    return _Unshard.apply(x.contiguous(), dim, ring, layout)
