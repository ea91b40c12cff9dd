"""The attention tables: time by sequence length and head dimension, forward with backward, memory by batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import memory
from .graphs import measure_graphs
from .models import model_steps
from .plan import Planner, Settings, halved
from .progress import Progress
from .report import Table, milliseconds, quotient, ratio
from .svg import Chart, number
from .timing import measure
from .verify import check
from .workloads import BACKENDS, BOTH, FORWARD, OURS, PEERS, Shape, backends_on, draw, make_call


class _Sizes(NamedTuple):
    base: Shape
    seqlens: tuple[int, ...]
    head_dims: tuple[int, ...]
    batches: tuple[int, ...]


_SIZES = _Sizes(
    Shape(batch=16, seqlen=1024, heads=12, dim=64),
    seqlens=(128, 256, 512, 1024, 2048, 4096, 8192),
    head_dims=(32, 64, 96, 128, 192, 256),
    batches=(1, 2, 4, 8, 16, 32, 64),
)
_GRAPH_FLOPS = 5e11  # of a graph of calls: a millisecond or more, beside which its launch is nothing
_MEMORY_BATCH = 4  # by sequence length: standard attention's matrices at 8192 fill most of a GPU
_QUICK_SIZES = _Sizes(Shape(batch=2, seqlen=64, heads=2, dim=32), seqlens=(32, 64), head_dims=(32, 64), batches=(1, 2))


def _sizes(settings: Settings) -> _Sizes:
    sizes = _QUICK_SIZES if settings.quick else _SIZES
    problem = {"causal": settings.causal, "dropout": settings.dropout, "padding": settings.padding}
    return sizes._replace(base=sizes.base._replace(**problem))


def steps(name: str, settings: Settings) -> int:
    """How often a table will report progress."""
    sizes = _sizes(settings)
    counts = {"headdim": len(sizes.head_dims), "memory": len(sizes.batches), "train": 4}
    if name in ("bert", "train-speed"):
        return 2 if settings.quick else 4
    if name == "models":
        return model_steps(settings)
    if name == "masking":
        return len(_masking_seqlens(settings)) * len(_MASKINGS)
    return counts.get(name, len(sizes.seqlens))


def _scaled_note(settings: Settings) -> str:
    if settings.full:
        return ""
    return f" The batch is halved until a few calls of every peer fit into {settings.budget:g} s."


def _subtitle(settings: Settings, what: str) -> str:
    mask = "causal" if settings.causal else "no mask"
    if settings.dropout:
        mask += f", dropout {settings.dropout:g}"
    if settings.padding:
        mask += f", {settings.padding:.0%} padding"
    return f"{what}, {str(settings.dtype).replace('torch.', '')}, {mask}, on {settings.device.type}; higher is better"


def _where(settings: Settings) -> tuple[torch.device, float]:
    return settings.device, settings.budget


def _timed_row(
    settings: Settings, planner: Planner, shape: Shape, direction: str, x: int, notes: list[str]
) -> dict[str, Any]:
    """One row of a table of times: the data of every peer, checked and then measured."""
    shape = shape._replace(batch=planner.fitting_batch(shape, direction))
    inputs = draw(shape, settings.dtype, settings.device)
    for name in (OURS, *[peer for peer in settings.peers if peer in BACKENDS]):
        check(shape, inputs, direction == BOTH, name)
    calls = {}
    for name in settings.everyone:
        reason = planner.reason_to_skip(name, direction, shape)
        if reason is None:
            calls[name] = make_call(name, inputs, shape, direction)
        else:
            notes.append(f"{x}: {PEERS[name].label} left out: {reason}.")
    if settings.device.type == "cuda" and direction == FORWARD:
        repeats = max(1, min(50, round(_GRAPH_FLOPS / shape.flops(direction))))
        measured = measure_graphs({name: [call] for name, call in calls.items()}, *_where(settings), repeats)
    else:
        measured = measure(calls, *_where(settings))
    planner.learn(shape, direction, measured)
    notes += [f"{x}: {PEERS[name].label} ran out of memory." for name in calls if measured[name].seconds is None]
    return {
        "x": x,
        **shape._asdict(),
        "direction": direction,
        "seconds": {name: measured[name].seconds if name in measured else None for name in settings.everyone},
        "samples": {name: len(measured[name].samples) if name in measured else 0 for name in settings.everyone},
    }


def _speed_up(row: dict[str, Any], name: str) -> float | None:
    return quotient(row["seconds"][name], row["seconds"][OURS])


def _timed_table(
    name: str,
    title: str,
    x_label: str,
    direction: str,
    shapes: dict[int, Shape],
    settings: Settings,
    progress: Progress,
) -> Table:
    planner, notes, data = Planner(settings), [], []
    for x, shape in shapes.items():
        progress.step(f"{name} {x}")
        data.append(_timed_row(settings, planner, shape, direction, x, notes))
    header, rows = [x_label, "batch", "flashwave, ms", "GFLOP/s"], []
    for peer in settings.peers:
        header += [f"{PEERS[peer].label}, ms", "speed-up"]
    for row in data:
        shape = Shape(*[row[field] for field in Shape._fields])
        speed = quotient(shape.flops(direction) / 1e9, row["seconds"][OURS])
        cells = [str(row["x"]), str(row["batch"]), milliseconds(row["seconds"][OURS])]
        cells.append("-" if speed is None else number(speed))
        for peer in settings.peers:
            cells += [milliseconds(row["seconds"][peer]), ratio(_speed_up(row, peer))]
        rows.append(tuple(cells))
    chart = Chart(
        title,
        _subtitle(settings, direction),
        x_label,
        "speed-up",
        tuple(str(x) for x in shapes),
        {f"over {PEERS[peer].label}": tuple(_speed_up(row, peer) for row in data) for peer in settings.peers},
        baseline=1.0,
    )
    first = next(iter(shapes.values()))
    fixed = f"{first.heads} heads, " + (f"head dim {first.dim}" if x_label == "seqlen" else f"seqlen {first.seqlen}")
    text = (
        f"Median time of the {direction}, {fixed}, batch {first.batch}; speed-up is the peer's time over flashwave's."
        + _scaled_note(settings)
    )
    return Table(name, title, text, tuple(header), rows, notes, chart, data)


def seqlen_table(settings: Settings, progress: Progress) -> Table:
    sizes = _sizes(settings)
    shapes = {seqlen: sizes.base._replace(seqlen=seqlen) for seqlen in sizes.seqlens}
    return _timed_table("seqlen", "Forward by sequence length", "seqlen", FORWARD, shapes, settings, progress)


def headdim_table(settings: Settings, progress: Progress) -> Table:
    sizes = _sizes(settings)
    shapes = {dim: sizes.base._replace(dim=dim) for dim in sizes.head_dims}
    return _timed_table("headdim", "Forward by head dimension", "head dim", FORWARD, shapes, settings, progress)


def backward_table(settings: Settings, progress: Progress) -> Table:
    sizes = _sizes(settings)
    shapes = {seqlen: sizes.base._replace(seqlen=seqlen) for seqlen in sizes.seqlens}
    title = "Forward and backward by sequence length"
    return _timed_table("backward", title, "seqlen", BOTH, shapes, settings, progress)


def _backends_table(name: str, title: str, direction: str, settings: Settings, progress: Progress) -> Table:
    """flashwave as it chooses itself beside each of its backends, and SDPA."""
    settings = settings._replace(peers=(*backends_on(settings.device, settings.dtype), "sdpa"))
    sizes = _sizes(settings)
    shapes = {seqlen: sizes.base._replace(seqlen=seqlen) for seqlen in sizes.seqlens}
    return _timed_table(name, title, "seqlen", direction, shapes, settings, progress)


def backends_table(settings: Settings, progress: Progress) -> Table:
    return _backends_table("backends", "Forward by backend", FORWARD, settings, progress)


def backends_backward_table(settings: Settings, progress: Progress) -> Table:
    title = "Forward and backward by backend"
    return _backends_table("backends-backward", title, BOTH, settings, progress)


# ------------------------------------------------------------------------------------------------- dropout and padding

_DROPOUT, _PADDING = 0.1, 0.25  # where no option says otherwise
_MASKINGS = {  # whether there is dropout, and padding
    "plain": (False, False),
    "dropout": (True, False),
    "padding": (False, True),
    "dropout and padding": (True, True),
}


def _masking_seqlens(settings: Settings) -> tuple[int, ...]:
    return tuple(seqlen for seqlen in _sizes(settings).seqlens if seqlen <= 4096)


def masking_table(settings: Settings, progress: Progress) -> Table:
    """Forward and backward against standard attention, plain, with dropout, with padding and with both."""
    settings = settings._replace(peers=("standard",))
    dropout, padding = settings.dropout or _DROPOUT, settings.padding or _PADDING
    base = _sizes(settings).base._replace(batch=8 if not settings.quick else 2)
    planner, notes, data = Planner(settings), [], []
    for seqlen in _masking_seqlens(settings):
        for name, (drops, pads) in _MASKINGS.items():
            progress.step(f"masking {seqlen}, {name}")
            shape = base._replace(seqlen=seqlen, dropout=drops * dropout, padding=pads * padding)
            row = _timed_row(settings, planner, shape, BOTH, seqlen, notes)
            data.append({**row, "masking": name})
    header, rows = ("seqlen", "masking", "batch", "flashwave, ms", "standard PyTorch, ms", "speed-up"), []
    for row in data:
        times = [milliseconds(row["seconds"][name]) for name in (OURS, "standard")]
        rows.append((str(row["x"]), row["masking"], str(row["batch"]), *times, ratio(_speed_up(row, "standard"))))
    series = {name: tuple(_speed_up(row, "standard") for row in data if row["masking"] == name) for name in _MASKINGS}
    title = "Forward and backward with dropout and padding"
    chart = Chart(
        title, _subtitle(settings._replace(dropout=0.0, padding=0.0), "speed-up over standard PyTorch"), "seqlen",
        "speed-up", tuple(str(seqlen) for seqlen in _masking_seqlens(settings)), series, baseline=1.0,
    )  # fmt: skip
    text = (
        f"Median time of the forward + backward, {base.heads} heads, head dim {base.dim}, batch {base.batch}. Dropout "
        f"is {dropout:g}. With padding {padding:.0%} of the positions hold no token: sequences of {1 - 2 * padding:.0%}"
        " to 100% of the length, which flashwave gets without their padding and standard attention with a mask."
        + _scaled_note(settings)
    )
    return Table("masking", title, text, header, rows, notes, chart, data)


# -------------------------------------------------------------------------------------------------------------- memory


def _mebibytes(bytes_: int | None, parts: int) -> str:
    return "-" if bytes_ is None else ("≈ " if parts > 1 else "") + number(bytes_ / 2**20)


def _peak(settings: Settings, planner: Planner, shape: Shape, direction: str, name: str) -> tuple[int | None, int]:
    """Peak memory, and of how many parts it is the sum: what does not fit is measured on a part and multiplied."""
    part, parts = planner.share(name, direction, shape)
    while planner.fits(name, direction, part):
        found = memory.peak(name, draw(part, settings.dtype, settings.device), part, direction)
        if found is not None:
            return found * parts, parts
        if name == OURS or part.batch * part.heads == 1:
            break
        smaller = halved(part)
        parts *= part.batch * part.heads // (smaller.batch * smaller.heads)
        part = smaller
    return None, parts


def _memory_row(settings: Settings, planner: Planner, shape: Shape, x: int, notes: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"x": x, **shape._asdict(), "parts": {}}
    for direction in (FORWARD, BOTH):
        found, parts = row.setdefault(direction, {}), row["parts"].setdefault(direction, {})
        for name in settings.everyone:
            found[name], parts[name] = _peak(settings, planner, shape, direction, name)
            if found[name] is None:
                reason = planner.reason_to_skip(name, direction, shape) or "ran out of memory"
                notes.append(f"{x}: {PEERS[name].label}, {direction}: {reason}.")
    return row


def _memory_table(
    name: str, title: str, x_label: str, shapes: dict[int, Shape], settings: Settings, progress: Progress
) -> Table:
    planner, notes, data, base = Planner(settings), [], [], next(iter(shapes.values()))
    check(base._replace(batch=1), draw(base._replace(batch=1), settings.dtype, settings.device), gradients=True)
    for x, shape in shapes.items():
        progress.step(f"{name} {x}")
        data.append(_memory_row(settings, planner, shape, x, notes))
    header, rows = [x_label], []
    for direction in (FORWARD, BOTH):
        header += [f"{direction}: flashwave, MiB"]
        for peer in settings.peers:
            header += [f"{PEERS[peer].label}, MiB", "ratio"]
    for row in data:
        cells = [str(row["x"])]
        for direction in (FORWARD, BOTH):
            found, parts = row[direction], row["parts"][direction]
            cells.append(_mebibytes(found[OURS], parts[OURS]))
            for peer in settings.peers:
                cells += [_mebibytes(found[peer], parts[peer]), ratio(quotient(found[peer], found[OURS]))]
        rows.append(tuple(cells))
    series = {
        f"{PEERS[peer].label}, {direction}": tuple(quotient(row[direction][peer], row[direction][OURS]) for row in data)
        for direction in (FORWARD, BOTH)
        for peer in settings.peers
    }
    chart = Chart(
        title, _subtitle(settings, "memory of a peer over flashwave's"), x_label, "times as much",
        tuple(str(x) for x in shapes), series, baseline=1.0,
    )  # fmt: skip
    how = (
        "torch.cuda.max_memory_allocated over what was allocated before"
        if settings.device.type == "cuda"
        else "the most bytes alive at once in torch's allocator (from its profiler), and for flashwave also the larger "
        "workspace that the library reports for its calls"
    )
    fixed = f"seqlen {base.seqlen}" if x_label == "batch" else f"batch {base.batch}"
    fixed = f"{base.heads} heads, {fixed}, head dim {base.dim}"
    text = f"Peak of one call beyond its inputs, results included, {fixed}: {how}."
    if any(parts > 1 for row in data for of in row["parts"].values() for parts in of.values()):
        text += (
            " ≈: the whole is over the memory budget or takes too long; a part of the batch, or of the heads, was "
            "measured and multiplied, since memory is in proportion to both."
        )
    return Table(name, title, text, tuple(header), rows, notes, chart, data)


def memory_table(settings: Settings, progress: Progress) -> Table:
    sizes = _sizes(settings)
    shapes = {batch: sizes.base._replace(batch=batch) for batch in sizes.batches}
    return _memory_table("memory", "Memory by batch", "batch", shapes, settings, progress)


def memory_seqlen_table(settings: Settings, progress: Progress) -> Table:
    sizes = _sizes(settings)
    shapes = {seqlen: sizes.base._replace(batch=_MEMORY_BATCH, seqlen=seqlen) for seqlen in sizes.seqlens}
    return _memory_table("memory-seqlen", "Memory by sequence length", "seqlen", shapes, settings, progress)
