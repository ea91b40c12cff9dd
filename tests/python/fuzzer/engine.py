"""Runs sequences. A sequence is a function of its seed and number alone; each of its steps has a seed of its own."""

from __future__ import annotations

import collections
import random
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from . import calls, modes, more_calls
from .world import Finding, World

MAKERS: dict[str, tuple[Callable, float]] = {
    "dense": (calls.dense, 6.0),
    "packed": (calls.packed, 3.0),
    "cached": (calls.cached, 3.0),
    **{name: (maker, 1.0) for name, maker in more_calls.available().items()},
}


@dataclass
class Tally:
    """What was done, so that a run which refused everything is not taken for a good one."""

    sequences: int = 0
    steps: int = 0
    next: int = 0  # the number behind the last sequence
    right: collections.Counter = field(default_factory=collections.Counter)  # by maker and mode
    refused: collections.Counter = field(default_factory=collections.Counter)

    def data(self) -> list:
        """As JSON can have it."""
        return [self.sequences, self.steps, self.next, *(list(x.items()) for x in (self.right, self.refused))]

    def add(self, data: list) -> None:
        """What `data` of another process said."""
        self.sequences, self.steps, self.next = self.sequences + data[0], self.steps + data[1], data[2]
        for counter, items in zip((self.right, self.refused), data[3:]):
            counter.update({tuple(key): count for key, count in items})

    def lines(self) -> list[str]:
        result = [f"{self.sequences} sequences, {self.steps} steps"]
        for key in sorted(self.right.keys() | self.refused.keys()):
            result.append(f"  {key[0]:12} {key[1]:13} {self.right[key]:8} right {self.refused[key]:8} refused")
        return result

    def check(self) -> None:
        """Every maker's calls must have been computed, in every mode but those that are allowed to refuse always."""
        for key in self.refused:
            optional = key[1] in ("twice", "forward_mode", "functional")
            if not optional and self.refused[key] > 20 and self.right[key] < self.refused[key]:
                raise Finding(
                    f"{key[0]} / {key[1]} / mostly refused", f"{self.right[key]} right, {self.refused[key]} not"
                )


def run_sequence(
    seed: int, number: int, tally: Tally, only: Iterable[int] | None = None, verbose: bool = False
) -> None:
    """Raises Finding. `only` names the steps to run, where the others do not matter."""
    head = random.Random(f"{seed}/{number}")
    world, count = World(head), head.choice((3, 5, 8, 12))
    tally.sequences += 1
    try:
        for step in range(count):
            if only is not None and step not in only:
                continue
            world.rng = world.pick = random.Random(f"{seed}/{number}/{step}")
            tally.steps += 1
            try:
                _step(world, tally, step, f"{seed}/{number}/{step}/call", verbose)
            except Finding as finding:
                finding.step = step
                raise
    finally:
        world.close()


def _step(world: World, tally: Tally, step: int, seed: str, verbose: bool) -> None:
    def say(what: object) -> None:
        if verbose:
            print(f"  step {step}: {what}", flush=True)

    kind = world.rng.random()
    if kind < 0.12:
        return say(f"changes {world.change()}")
    if kind < 0.20:
        return say(f"sets {world.set_something()}")
    if kind < 0.50 and world.last is not None:
        name, seed = world.last  # the same call with other tensors, or with the same ones in other places
    else:
        name = world.rng.choices(list(MAKERS), [weight for _, weight in MAKERS.values()])[0]
    world.last, world.rng = (name, seed), random.Random(seed)
    call = MAKERS[name][0](world)
    mode = modes.choose(world, call)
    say(f"{mode.__name__}: {call}")
    key = (name, mode.__name__)
    try:
        mode(world, call)
        tally.right[key] += 1
    except modes.Refused as refusal:
        say(f"refused: {refusal}")
        tally.refused[key] += 1
    except (Finding, KeyboardInterrupt):
        raise
    except Exception as error:  # of the fuzzer itself, or of torch where nobody expected it
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-3:])
        raise Finding(f"{call.name} / {mode.__name__} / {type(error).__name__} outside the call", text) from error


def run(
    seed: int,
    first: int = 0,
    count: int | None = None,
    seconds: float | None = None,
    on_finding: Callable[[int, Finding], bool] | None = None,
    tally: Tally | None = None,
) -> Tally:
    """Sequences first, first + 1, ... until `count` or `seconds`. on_finding says whether to go on."""
    tally = Tally() if tally is None else tally
    end = None if seconds is None else time.monotonic() + seconds
    number = first
    torch.set_num_threads(1)  # the calls are small: threads would wait for one another. World.set_something changes it
    while (count is None or number < first + count) and (end is None or time.monotonic() < end):
        try:
            run_sequence(seed, number, tally)
        except Finding as finding:
            if on_finding is None:
                raise
            if not on_finding(number, finding):
                break
        number += 1
    return tally
