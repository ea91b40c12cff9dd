"""Time of calls, in rounds that take every peer in turn, so that a slow phase of the machine hits all of them."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..errors import OutOfMemory

Call = Callable[[], Any]

_MOST_ROUNDS = 200
_ENOUGH_SAMPLES = 5
_SHORTEST_SAMPLE = {
    "cpu": 0.5e-3,
    "cuda": 5e-3,
}  # seconds; a GPU's queue has to be full for its time to be the kernels'


class Measured(NamedTuple):
    """The samples of one call, in seconds; none if it ran out of memory."""

    samples: tuple[float, ...]

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, OutOfMemory, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def seconds_of(call: Call, device: torch.device, repeats: int = 1) -> float:
    """Seconds a call takes, the average of `repeats` in a row; on a GPU from events around them."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / repeats


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """None while something is timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warm_up(call: Call, device: torch.device, budget: float) -> float:
    """Seconds a warm call takes, roughly: the second of two, or the only one if there is no time for another."""
    first = seconds_of(call, device)
    return seconds_of(call, device) if first < budget / 4 else first


def measure(calls: dict[str, Call], device: torch.device, budget: float) -> dict[str, Measured]:
    """Samples of every call, at least one after a warm-up: in turns, until `budget` seconds for each are spent."""
    repeats, samples = {}, {name: [] for name in calls}
    with no_garbage_collection():
        for name, call in calls.items():
            try:
                estimate = _warm_up(call, device, budget)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            shortest = _SHORTEST_SAMPLE["cuda" if device.type == "cuda" else "cpu"]
            repeats[name] = max(1, min(1000, math.ceil(shortest / max(estimate, 1e-7))))
        spent = dict.fromkeys(repeats, 0.0)

        def sample(name: str) -> None:
            seconds = seconds_of(calls[name], device, repeats[name])
            samples[name].append(seconds)
            spent[name] += seconds * repeats[name]

        for _ in range(_MOST_ROUNDS):
            for name in repeats:
                sample(name)
            if sum(spent.values()) >= budget * len(spent):
                break
        for name in repeats:  # beside a slow one the quick ones have had few turns
            while len(samples[name]) < _ENOUGH_SAMPLES and spent[name] < budget:
                sample(name)
    return {name: Measured(tuple(found)) for name, found in samples.items()}
