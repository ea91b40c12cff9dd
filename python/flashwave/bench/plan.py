"""How much of a table fits: the batch of a row, and which peers would take too long or too much memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .timing import Measured, seconds_of
from .workloads import BACKENDS, OURS, Shape, draw, make_call, matrix_copies

_PATIENCE = 6  # budgets that one call of a peer may take before it is left out,
_SHORT = 5.0  # and seconds that it may take anyway: a small budget, or a busy machine, leaves no holes
_CALLS = 4  # of a row that is to be within the budget: a warm-up and three samples
_PROBE_SEQLEN = 256


class Settings(NamedTuple):
    device: torch.device
    dtype: torch.dtype
    peers: tuple[str, ...]  # without flashwave
    causal: bool
    quick: bool
    full: bool
    budget: float  # seconds of a peer in a cell
    memory_budget: int  # bytes
    dropout: float = 0.0
    padding: float = 0.0

    @property
    def everyone(self) -> tuple[str, ...]:
        return (OURS, *self.peers)


class Planner:
    """Predicts times from the speed seen last, of a small problem at first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rates: dict[tuple[str, str], float] = {}  # FLOP/s

    def _rate(self, name: str, direction: str, shape: Shape) -> float:
        found = self._rates.get((name, direction))
        if found is None:
            probe = shape._replace(batch=1, seqlen=min(shape.seqlen, _PROBE_SEQLEN))
            inputs = draw(probe, self._settings.dtype, self._settings.device)
            call = make_call(name, inputs, probe, direction)
            call()
            seconds = max(min(seconds_of(call, self._settings.device) for _ in range(3)), 1e-9)
            found = self._rates[name, direction] = probe.flops(direction) / seconds
        return found

    def learn(self, shape: Shape, direction: str, measured: dict[str, Measured]) -> None:
        for name, found in measured.items():
            if found.seconds:
                self._rates[name, direction] = shape.flops(direction) / found.seconds

    def _seconds(self, name: str, direction: str, shape: Shape) -> float:
        return shape.flops(direction) / self._rate(name, direction, shape)

    def fitting_batch(self, shape: Shape, direction: str) -> int:
        """The batch, halved until every peer is within the budget (which is in proportion to it), at least 1."""
        batch = shape.batch
        while batch > 1 and not self._settings.full:
            trial = shape._replace(batch=batch)
            # A backend that is slow is left out rather than make the row smaller for all.
            fitted = [name for name in self._settings.everyone if name not in BACKENDS]
            slowest = max(self._seconds(name, direction, trial) for name in fitted)
            if _CALLS * slowest <= self._settings.budget:
                break
            batch //= 2
        return batch

    def _lack_of_memory(self, name: str, direction: str, shape: Shape) -> str | None:
        needed = matrix_copies(name, direction, shape.dropout) * shape.matrix_bytes(self._settings.dtype)
        if needed <= self._settings.memory_budget:
            return None
        return f"needs {needed / 2**30:.1f} GiB, over the memory budget"

    def _lack_of_time(self, name: str, direction: str, shape: Shape) -> str | None:
        if self._settings.full:
            return None
        seconds = self._seconds(name, direction, shape)
        too_long = seconds > max(_PATIENCE * self._settings.budget, _SHORT)
        return f"about {seconds:.0f} s a call, far over the budget" if too_long else None

    def reason_to_skip(self, name: str, direction: str, shape: Shape) -> str | None:
        """Why a peer is left out of a cell: for memory, or if one call takes far too long. flashwave never is."""
        if name == OURS:
            return None
        return self._lack_of_memory(name, direction, shape) or self._lack_of_time(name, direction, shape)

    def share(self, name: str, direction: str, shape: Shape) -> tuple[Shape, int]:
        """A part of the batch, then of the heads, that is within the budgets, and how many such parts there are.

        Only of peers whose memory is that of matrices, which are in proportion to both; the others' is taken whole.
        """
        whole = shape.batch * shape.heads
        while matrix_copies(name, direction) and shape.batch * shape.heads > 1:
            if self.reason_to_skip(name, direction, shape) is None:
                break
            shape = halved(shape)
        return shape, whole // (shape.batch * shape.heads)

    def fits(self, name: str, direction: str, shape: Shape) -> bool:
        """Whether its matrices are within the memory budget."""
        return self._lack_of_memory(name, direction, shape) is None


def halved(shape: Shape) -> Shape:
    """Half of the batch or, if that is 1, a part of the heads; in both the whole is a multiple of it."""
    if shape.batch > 1:
        return shape._replace(batch=shape.batch // _least_factor(shape.batch))
    return shape._replace(heads=shape.heads // _least_factor(shape.heads))


def _least_factor(n: int) -> int:
    return next(factor for factor in range(2, n + 1) if n % factor == 0)
