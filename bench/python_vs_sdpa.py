#!/usr/bin/env python3
"""flashwave from Python against torch's scaled_dot_product_attention on the CPU, cell by cell, in one run.

Each gets the layout it likes best: flash_attn_func (batch, seqlen, heads, dim), SDPA (batch, heads, seqlen, dim). The
backward is timed alone. With --replaced both sides are calls of SDPA, ours after flashwave.activate().
docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

import flashwave
from flashwave import _library as fw
from flashwave.bench import overhead
from flashwave.bench.progress import Progress
from flashwave.bench.report import markdown_table, milliseconds, ratio
from flashwave.bench.timing import Measured, measure
from flashwave.bench.verify import WrongResult, check
from flashwave.bench.workloads import BACKWARD, DTYPES, FORWARD, OURS, Shape, draw, make_call

_PEER = "sdpa"
_HEADS = {512: 16, 1024: 8, 2048: 8, 4096: 4, 8192: 2}  # more of the short ones, so that no cell is over at once
_CPU = torch.device("cpu")


class Cell(NamedTuple):
    threads: int
    dtype: str
    direction: str
    shape: Shape

    def __str__(self) -> str:
        mask = "causal" if self.shape.causal else "full"
        return f"{self.direction} {self.dtype} s={self.shape.seqlen} d={self.shape.dim} {mask} threads={self.threads}"


def _cells(quick: bool, seqlens: list[int], dtypes: list[str], threads: list[int]) -> list[Cell]:
    if quick:
        shapes, threads = [Shape(1, 64, 2, 32, causal) for causal in (False, True)], [1]
    else:
        shapes = [Shape(1, s, _HEADS[s], d, causal) for s in seqlens for d in (64, 128) for causal in (False, True)]
    return [Cell(*key) for key in itertools.product(threads, dtypes, (FORWARD, BACKWARD), shapes)]


_TURNS = 3


def _measure_replaced(cell: Cell, inputs: Any, budget: float) -> dict[str, Measured]:
    """torch's own operators and ours in their place, in turns of some samples each."""
    found: dict[str, list[float]] = {_PEER: [], OURS: []}
    for _ in range(_TURNS):
        for name in found:
            if name == OURS:
                flashwave.activate()
            try:
                call = make_call(_PEER, inputs, cell.shape, cell.direction)
                found[name] += measure({name: call}, _CPU, budget / _TURNS)[name].samples
            finally:
                flashwave.restore()
    return {name: Measured(tuple(samples)) for name, samples in found.items()}


def _measure(cell: Cell, budget: float, replaced: bool) -> dict[str, Any]:
    torch.set_num_threads(cell.threads)
    inputs = draw(cell.shape, DTYPES[cell.dtype], _CPU)
    check(cell.shape, inputs, gradients=cell.direction == BACKWARD)
    if replaced:
        measured = _measure_replaced(cell, inputs, budget)
    else:
        calls = {name: make_call(name, inputs, cell.shape, cell.direction) for name in (OURS, _PEER)}
        measured = measure(calls, _CPU, budget)
    seconds = {name: found.seconds for name, found in measured.items()}
    return {
        "threads": cell.threads,
        "dtype": cell.dtype,
        "direction": cell.direction,
        **cell.shape._asdict(),
        "seconds": seconds,
        "samples": {name: len(found.samples) for name, found in measured.items()},
        "ratio": seconds[_PEER] / seconds[OURS],
        "name": str(cell),
    }


def _geomean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _groups(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric mean and worst cell for each direction, dtype and number of threads."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["direction"], cell["dtype"], cell["threads"]), []).append(cell)
    return [
        {
            "direction": direction,
            "dtype": dtype,
            "threads": threads,
            "geomean": _geomean([cell["ratio"] for cell in members]),
            "worst": min(members, key=lambda cell: cell["ratio"])["name"],
            "worst_ratio": min(cell["ratio"] for cell in members),
        }
        for (direction, dtype, threads), members in groups.items()
    ]


def _cell_rows(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            cell["direction"],
            cell["dtype"],
            str(cell["threads"]),
            str(cell["seqlen"]),
            str(cell["heads"]),
            str(cell["dim"]),
            "causal" if cell["causal"] else "full",
            milliseconds(cell["seconds"][OURS]),
            milliseconds(cell["seconds"][_PEER]),
            ratio(cell["ratio"]),
            f"{cell['samples'][OURS]}, {cell['samples'][_PEER]}",
        )
        for cell in cells
    ]


def _print_comparison(cells: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    header = (
        "direction",
        "dtype",
        "threads",
        "s",
        "heads",
        "d",
        "mask",
        "flashwave, ms",
        "SDPA, ms",
        "ratio",
        "samples",
    )
    lines = ["Ratio: median of SDPA over median of flashwave; above 1 flashwave is faster. Batch 1.", ""]
    lines += markdown_table(header, _cell_rows(cells))
    summary = [
        (
            g["direction"],
            g["dtype"],
            str(g["threads"]),
            ratio(g["geomean"]),
            f"{ratio(g['worst_ratio'])} ({g['worst']})",
        )
        for g in groups
    ]
    lines += ["", *markdown_table(("direction", "dtype", "threads", "geometric mean", "worst cell"), summary)]
    worst = min(cells, key=lambda cell: cell["ratio"])
    lines += ["", f"Worst cell of all: {worst['name']}, {ratio(worst['ratio'])}."]
    print("\n".join(lines))


# oneDNN sizes its tiles by CPUID leaf 1Dh, which some hypervisors leave empty, and then dies of an illegal instruction
# in every 16-bit matrix product. Below AMX it runs; MKL, which serves SDPA, has its own switch and keeps its tiles.
_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
_BELOW_AMX = "AVX512_CORE_FP16"
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def _needs_limit() -> bool:
    """Whether torch's 16-bit products kill the process unless oneDNN is limited."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True).returncode < 0


# On CPUs that are not Intel's, MKL names no instruction set and does not heed its variable.
_SPEAK = "import torch; x = torch.ones(64, 64); x @ x; y = x.bfloat16(); y @ y"
_SAID = {
    "MKL, in its own words": re.compile(r"^MKL_VERBOSE \S.* architecture (.*), \S+ [\d.]+GHz", re.M),
    "oneDNN, in its own words": re.compile(r"^onednn_verbose,.*\bisa:(.*)$", re.M),
}


def _instructions() -> dict[str, str]:
    """What the libraries behind torch say that they use here."""
    loud = {**os.environ, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    said = subprocess.run([sys.executable, "-c", _SPEAK], capture_output=True, text=True, env=loud).stdout
    found = {name: pattern.search(said) for name, pattern in _SAID.items()}
    return {name: match[1] if match else "nothing" for name, match in found.items()}


def _facts() -> dict[str, Any]:
    cpu = fw.query(fw.device("cpu"))
    return {
        "cpu": f"{cpu['description']} ({cpu['arch']})",
        "flashwave": fw.version(),
        "torch": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        **{name: os.environ.get(name, "not set: all the CPU has") for name in _LIMITS},
        **_instructions(),
    }


def _compare(todo: list[Cell], budget: float, replaced: bool) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    progress = Progress(len(todo))
    try:
        for cell in todo:
            progress.step(str(cell))
            cells.append(_measure(cell, budget, replaced))
    finally:
        progress.close()
    groups = _groups(cells)
    _print_comparison(cells, groups)
    return {"cells": cells, "groups": groups}


def _overhead(quick: bool) -> dict[str, Any]:
    results = overhead.measure_overheads(repeats=50 if quick else 5000)
    print(
        "A call from Python, and the library's calls inside it alone: batch 1, 16 queries and keys, 1 head, dim 32.\n"
    )
    print("\n".join(markdown_table(*overhead.table(results))))
    return {"overhead": [one._asdict() for one in results]}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overhead", action="store_true", help="instead: the cost of a call from Python")
    parser.add_argument("--replaced", action="store_true", help="SDPA itself, computed by torch and by flashwave")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--budget", type=float, help="seconds of each side in a cell (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--seqlens", type=int, nargs="+", choices=_HEADS, default=[1024, 2048, 4096])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args(argv)
    budget = arguments.budget or (0.01 if arguments.quick else 2.0)
    facts = _facts()
    print("\n".join([*markdown_table(("", ""), list(facts.items())), ""]))
    try:
        if arguments.overhead:
            results = _overhead(arguments.quick)
        else:
            todo = _cells(arguments.quick, arguments.seqlens, arguments.dtypes, arguments.threads)
            results = _compare(todo, budget, arguments.replaced)
    except WrongResult as error:
        print(f"error: wrong result, nothing is timed: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"environment": facts, **results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if _needs_limit():  # read when torch is loaded, so it takes a new process
        print(f"torch's oneDNN crashes on this CPU: ONEDNN_MAX_CPU_ISA={_BELOW_AMX} is set for it", file=sys.stderr)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "ONEDNN_MAX_CPU_ISA": _BELOW_AMX})
    sys.exit(main())
