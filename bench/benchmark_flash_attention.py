#!/usr/bin/env python3
"""Forward, backward and both, in TFLOPs/s, against standard PyTorch attention and SDPA.

Prints what flash-attn's script of this name prints. Runs on whatever device torch has; docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import sys

from flashwave.bench.__main__ import add_device_options, settings_of
from flashwave.bench.plan import Planner, Settings
from flashwave.bench.timing import is_out_of_memory, measure
from flashwave.bench.verify import WrongResult, check
from flashwave.bench.workloads import BACKWARD, BOTH, FORWARD, OURS, Shape, draw, make_call

_LABELS = {OURS: "flashwave", "standard": "Pytorch", "sdpa": "SDPA"}
_COLUMNS = {FORWARD: "fwd", BACKWARD: "bwd", BOTH: "fwd + bwd"}
_HIDDEN = 2048  # heads * head dim
_BATCH_AND_SEQLEN = ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))


def _shapes(quick: bool) -> list[Shape]:
    if quick:
        return [Shape(2, 64, 2, 32, causal) for causal in (False, True)]
    return [
        Shape(batch, seqlen, _HIDDEN // dim, dim, causal)
        for causal in (False, True)
        for dim in (64, 128)
        for batch, seqlen in _BATCH_AND_SEQLEN
    ]


def _rates(shape: Shape, direction: str, settings: Settings, planner: Planner) -> dict[str, float | None]:
    """FLOP/s of everyone; None for a peer that is left out."""
    inputs, calls = draw(shape, settings.dtype, settings.device), {}
    for name in settings.everyone:
        if planner.reason_to_skip(name, direction, shape) is None:
            try:
                calls[name] = make_call(name, inputs, shape.causal, direction)
            except (RuntimeError, MemoryError) as error:  # the backward's graph may not fit
                if not is_out_of_memory(error):
                    raise
    measured = measure(calls, settings.device, settings.budget)
    planner.learn(shape, direction, measured)
    seconds = {name: measured[name].seconds if name in measured else None for name in settings.everyone}
    return {name: None if s is None else shape.flops(direction) / s for name, s in seconds.items()}


def _speed(rate: float | None, digits: int) -> str:
    return "-" if rate is None else f"{rate / 1e12:.{digits}f} TFLOPs/s"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_device_options(parser)
    parser.add_argument("--quick", action="store_true", help="two tiny configurations")
    parser.add_argument("--full", action="store_true", help="no time budget: nothing is left out but for memory")
    arguments = parser.parse_args(argv, argparse.Namespace(peers=("standard", "sdpa"), causal=False))
    settings = settings_of(arguments)
    planners = {causal: Planner(settings) for causal in (False, True)}
    digits = 2 if settings.device.type == "cuda" else 4
    for shape in _shapes(settings.quick):
        try:
            check(shape, draw(shape, settings.dtype, settings.device), gradients=True)
        except WrongResult as error:
            print(f"error: wrong result, nothing is timed: {error}", file=sys.stderr)
            return 1
        print(f"### causal={shape.causal}, headdim={shape.dim}, batch_size={shape.batch}, seqlen={shape.seqlen} ###")
        rates = {d: _rates(shape, d, settings, planners[shape.causal]) for d in _COLUMNS}
        for name, label in _LABELS.items():
            print(f"{label} " + ", ".join(f"{c}: {_speed(rates[d][name], digits)}" for d, c in _COLUMNS.items()))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
