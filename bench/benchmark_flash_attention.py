#!/usr/bin/env python3
"""Forward, backward and both, in TFLOPs/s, against standard PyTorch attention and SDPA.

Prints what flash-attn's script of this name prints; --blocks what that of FlashAttention 0.2 and its ROCm fork printed,
milliseconds of one configuration with dropout. Runs on whatever device torch has; docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

try:
    import flashwave  # noqa: F401
except ModuleNotFoundError:  # from a checkout, whatever PYTHONPATH says
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from flashwave.bench import svg
from flashwave.bench.__main__ import add_device_options, settings_of
from flashwave.bench.plan import Planner, Settings
from flashwave.bench.progress import Progress
from flashwave.bench.timing import Measured, is_out_of_memory, measure
from flashwave.bench.verify import WrongResult, check
from flashwave.bench.workloads import BACKWARD, BOTH, FORWARD, OURS, Shape, draw, make_call

_LABELS = {OURS: "flashwave", "standard": "Pytorch", "sdpa": "SDPA"}
_COLUMNS = {FORWARD: "fwd", BACKWARD: "bwd", BOTH: "fwd + bwd"}
_HIDDEN = 2048  # heads * head dim
_BATCH_AND_SEQLEN = ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))
_BLOCKS = Shape(batch=64, seqlen=1024, heads=16, dim=64, dropout=0.1)
_BLOCK_LABELS = {OURS: "FlashAttention", "standard": "PyTorch Standard Attention"}
_BLOCK_PASSES = {FORWARD: "Forward", BACKWARD: "Backward", BOTH: "Forward + Backward"}


def _shapes(settings: Settings) -> list[Shape]:
    if settings.quick:
        found = [Shape(2, 64, 2, 32, causal) for causal in (False, True)]
    else:
        found = [
            Shape(batch, seqlen, _HIDDEN // dim, dim, causal)
            for causal in (False, True)
            for dim in (64, 128)
            for batch, seqlen in _BATCH_AND_SEQLEN
        ]
    return [shape._replace(dropout=settings.dropout, padding=settings.padding) for shape in found]


def _measured(shape: Shape, direction: str, settings: Settings, planner: Planner) -> dict[str, Measured]:
    """Times of everyone who is not left out."""
    inputs, calls = draw(shape, settings.dtype, settings.device), {}
    for name in settings.everyone:
        if planner.reason_to_skip(name, direction, shape) is None:
            try:
                calls[name] = make_call(name, inputs, shape, direction)
            except (RuntimeError, MemoryError) as error:  # the backward's graph may not fit
                if not is_out_of_memory(error):
                    raise
    measured = measure(calls, settings.device, settings.budget)
    planner.learn(shape, direction, measured)
    return measured


def _rates(shape: Shape, direction: str, settings: Settings, planner: Planner) -> dict[str, float | None]:
    """FLOP/s of everyone; None for a peer that is left out."""
    measured = _measured(shape, direction, settings, planner)
    seconds = {name: measured[name].seconds if name in measured else None for name in settings.everyone}
    return {name: None if s is None else shape.flops(direction) / s for name, s in seconds.items()}


def _speed(rate: float | None, digits: int) -> str:
    return "-" if rate is None else f"{rate / 1e12:.{digits}f} TFLOPs/s"


def _print_rates(settings: Settings, out: Path | None) -> None:
    planners = {causal: Planner(settings) for causal in (False, True)}
    digits, shapes = 2 if settings.device.type == "cuda" else 4, _shapes(settings)
    progress, found = Progress(len(shapes) * len(_COLUMNS)), {}
    for shape in shapes:
        check(shape, draw(shape, settings.dtype, settings.device), gradients=True)
        title = f"causal={shape.causal}, headdim={shape.dim}, batch_size={shape.batch}, seqlen={shape.seqlen}"
        rates = found[shape] = {}
        for direction in _COLUMNS:
            progress.step(f"{title}, {_COLUMNS[direction]}")
            rates[direction] = _rates(shape, direction, settings, planners[shape.causal])
        progress.close()
        print(f"### {title} ###")
        for name, label in _LABELS.items():
            print(f"{label} " + ", ".join(f"{c}: {_speed(rates[d][name], digits)}" for d, c in _COLUMNS.items()))
        sys.stdout.flush()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "benchmark_flash_attention.svg").write_text(svg.grid(_charts(found, settings), columns=2))


def _charts(found: dict[Shape, dict], settings: Settings) -> list[svg.Chart]:
    """One for each head dim, mask and direction but the backward alone."""
    charts = []
    for dim, causal in dict.fromkeys((shape.dim, shape.causal) for shape in found):
        shapes = [shape for shape in found if (shape.dim, shape.causal) == (dim, causal)]
        for direction in (FORWARD, BOTH):
            rates = [found[shape][direction] for shape in shapes]
            series = {
                label: tuple(None if rate[name] is None else rate[name] / 1e12 for rate in rates)
                for name, label in _LABELS.items()
            }
            about = f"head dim {dim}, {'causal' if causal else 'full'}, on {settings.device.type}; higher is better"
            seqlens = tuple(str(shape.seqlen) for shape in shapes)
            charts.append(svg.Chart(direction.capitalize(), about, "seqlen", "TFLOPs/s", seqlens, series))
    return charts


def _print_blocks(settings: Settings) -> None:
    """Milliseconds as torch.utils.benchmark prints them, of the configuration that the ROCm fork shows."""
    shape = _BLOCKS._replace(batch=2, seqlen=64, heads=2) if settings.quick else _BLOCKS
    shape = shape._replace(dropout=settings.dropout or shape.dropout, padding=settings.padding)
    settings = settings._replace(peers=("standard",))
    planner, progress = Planner(settings), Progress(len(_BLOCK_PASSES))
    shape = shape._replace(batch=planner.fitting_batch(shape, BOTH))
    check(shape, draw(shape, settings.dtype, settings.device), gradients=True)
    measured = {}
    for direction, label in _BLOCK_PASSES.items():
        progress.step(label)
        measured[direction] = _measured(shape, direction, settings, planner)
    progress.close()
    print(", ".join(f"{name} {value:g}" for name, value in shape._asdict().items() if value))
    for name, label in _BLOCK_LABELS.items():
        for direction, words in _BLOCK_PASSES.items():
            one = measured[direction].get(name, Measured(()))
            print(f"{label} - {words} pass")
            print("  -" if one.seconds is None else f"  {one.seconds * 1e3:.2f} ms")
            print(f"  1 measurement, {len(one.samples)} runs , {torch.get_num_threads()} threads")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_device_options(parser)
    parser.add_argument("--blocks", action="store_true", help="milliseconds of one configuration, in 0.2's words")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write benchmark_flash_attention.svg there")
    parser.add_argument("--quick", action="store_true", help="two tiny configurations")
    parser.add_argument("--full", action="store_true", help="no time budget: nothing is left out but for memory")
    arguments = parser.parse_args(argv, argparse.Namespace(peers=("standard", "sdpa"), causal=False))
    settings = settings_of(arguments)
    try:
        if arguments.blocks:
            _print_blocks(settings)
        else:
            _print_rates(settings, arguments.out)
    except WrongResult as error:
        print(f"error: wrong result, nothing is timed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
