#!/usr/bin/env python3
"""flashwave against torch's attention on an NVIDIA GPU, cell by cell, in one run on the same tensors.

Times are of CUDA graphs, whose replays take turns: no cost of Python or of a launch from the host is in them. Every
cell of ours is compared with exact attention before it is timed. docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

try:
    from cuda_cells import GROUPS, OURS, Cell, cells
except ImportError:  # loaded by its path
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from cuda_cells import GROUPS, OURS, Cell, cells

import cuda_modified
import cuda_peers
import torch.nn.functional as F

from flashwave import _library as fw
from flashwave import flash_attn_func, flash_attn_with_kvcache
from flashwave.bench import svg
from flashwave.bench.graphs import measure_graphs
from flashwave.bench.report import markdown_table, ratio
from flashwave.bench.timing import measure
from flashwave.bench.workloads import DTYPES

_CUDA = torch.device("cuda")
_MODIFIED = {"terms": cuda_modified.terms, "training": cuda_modified.training, "dropout": cuda_modified.dropouts}
_GROUPS = (*GROUPS, *_MODIFIED)


def _geomean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


# ---------------------------------------------------------------------------------------------------------- measuring


def _copy_rate(budget: float) -> float:
    """GB/s of a copy inside the GPU's memory, bytes read and bytes written."""
    source = torch.randn(1 << 29, device=_CUDA)
    target = torch.empty_like(source)
    seconds = measure({"copy": lambda: target.copy_(source)}, _CUDA, budget)["copy"].seconds
    return 2.0 * source.numel() * source.element_size() / seconds / 1e9


def _usable(cell: Cell) -> dict[str, Any]:
    """The calls that run: a backend of torch may not take a problem."""
    usable, why = {}, {}
    for name, calls in cell.calls.items():
        try:
            calls[0]()
            usable[name] = calls
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            if name == OURS:
                raise
            why[name] = (str(error) or repr(error)).splitlines()[0]
    return {"calls": usable, "refused": why}


def _measure(cell: Cell, budget: float) -> dict[str, Any]:
    cell.check()
    found = _usable(cell)
    measured = measure_graphs(found["calls"], _CUDA, budget, cell.repeats)
    seconds = {name: samples.seconds for name, samples in measured.items() if samples.seconds}
    return {
        "group": cell.group,
        "name": cell.name,
        "unit": cell.unit,
        "seconds": seconds,
        "rate": {name: cell.amount / s for name, s in seconds.items()},
        "ratio": {name: s / seconds[OURS] for name, s in seconds.items() if name != OURS},
        "samples": {name: len(samples.samples) for name, samples in measured.items()},
        "refused": found["refused"],
    }


def _host_cost() -> dict[str, float]:
    """Microseconds that a call takes on the host, the GPU being idle: the least of batches of 200."""
    q, k, v = (torch.randn(1, rows, 8, 64, device=_CUDA).bfloat16() for rows in (1, 64, 64))
    lengths = torch.full((1,), 40, dtype=torch.int32, device=_CUDA)
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    calls = {
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "flash_attn_with_kvcache, one token appended": lambda: flash_attn_with_kvcache(
            q, k, v, q, q, cache_seqlens=lengths
        ),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*heads_first),
    }
    cost = dict.fromkeys(calls, math.inf)
    for _ in range(7):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            cost[name] = min(cost[name], (time.perf_counter() - start) / 200 * 1e6)
    return cost


# ----------------------------------------------------------------------------------------------------------- reporting


def summaries(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric mean of the ratio to every peer, and the worst cell, for each group."""
    found = []
    for group in dict.fromkeys(result["group"] for result in results):
        members = [result for result in results if result["group"] == group]
        for peer in dict.fromkeys(name for result in members for name in result["ratio"]):
            having = [result for result in members if peer in result["ratio"]]
            worst = min(having, key=lambda result: result["ratio"][peer])
            found.append(
                {
                    "group": group,
                    "peer": peer,
                    "cells": len(having),
                    "geomean": _geomean([result["ratio"][peer] for result in having]),
                    "worst": worst["name"],
                    "worst_ratio": worst["ratio"][peer],
                }
            )
    return found


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds >= 1e-4 else f"{seconds * 1e3:.4f}"


def _group_lines(results: list[dict[str, Any]], floor: float | None) -> list[str]:
    peers = list(dict.fromkeys(name for result in results for name in result["ratio"]))
    header = ["cell", "flashwave, ms", results[0]["unit"]]
    for peer in peers:
        header += [f"{peer}, {results[0]['unit']}", "ratio"]
    rows = []
    for result in results:
        row = [result["name"], _time(result["seconds"][OURS]), f"{result['rate'][OURS]:.0f}"]
        for peer in peers:
            rate = result["rate"].get(peer)
            row += ["-", "-"] if rate is None else [f"{rate:.0f}", ratio(result["ratio"][peer])]
        if floor:
            row.append(f"{result['rate'][OURS] / floor:.3f}")
        rows.append(tuple(row))
    if floor:
        header.append("of the rate of a copy")
    return ["", *markdown_table(tuple(header), rows)]


def markdown(content: dict[str, Any]) -> str:
    """All that was measured, as a page."""
    results = content["cells"]
    lines = [
        "# flashwave against torch's attention",
        "",
        *markdown_table(("", ""), list(content["environment"].items())),
    ]
    lines += ["", "Ratio: a peer's time over flashwave's; above 1 flashwave is faster. Times are of CUDA graphs."]
    for group in dict.fromkeys(result["group"] for result in results):
        members = [result for result in results if result["group"] == group]
        lines += ["", f"## {group.capitalize()}"]
        lines += _group_lines(members, content["copy_gb_per_s"] if group == "tiny" else None)
    rows = [
        (s["group"], s["peer"], str(s["cells"]), ratio(s["geomean"]), f"{ratio(s['worst_ratio'])} ({s['worst']})")
        for s in content["groups"]
    ]
    lines += ["", "## Summary", ""]
    lines += markdown_table(("group", "peer", "cells", "geometric mean", "worst cell"), rows)
    refused = [(r["name"], peer, reason) for r in results for peer, reason in r["refused"].items()]
    if refused:
        lines += ["", *[f"- {name}: {peer} does not take it: {reason}" for name, peer, reason in refused]]
    lines += [
        "",
        f"A copy in the GPU's memory: {content['copy_gb_per_s']:.0f} GB/s. A call on the host, microseconds:",
        "",
    ]
    costs = [(name, f"{cost:.1f}") for name, cost in content["host_us"].items()]
    return "\n".join([*lines, *markdown_table(("call", "least"), costs)]) + "\n"


def charts(results: list[dict[str, Any]], device: str) -> list[svg.Chart]:
    """Of the prefill by head dimension and mask, and of the decoding."""
    found = []
    for mask in ("full", "causal"):
        for dim in (64, 128, 256):
            members = [r for r in results if r["group"] == f"prefill {mask}" and r["name"].startswith(f"d={dim} ")]
            if members:
                found.append(_chart(f"Forward, head dim {dim}, {mask}", "sequence length", members, device))
            members = [r for r in results if r["group"] == f"backward {mask}" and r["name"].startswith(f"d={dim} ")]
            if members:
                found.append(_chart(f"Backward, head dim {dim}, {mask}", "sequence length", members, device))
    for group in ("decode", "few queries", "pages", "chunks", "tiny"):
        members = [result for result in results if result["group"] == group]
        if members:
            found.append(_chart(group.capitalize(), "", members, device))
    return found


def overview(results: list[dict[str, Any]], device: str) -> list[svg.Chart]:
    """Forward and backward, each head dimension and mask: the geometric mean over the sequence lengths."""
    found = []
    for title, word in (("Forward", "prefill"), ("Backward", "backward")):
        groups: dict[str, list[dict[str, Any]]] = {}
        for result in results:
            if result["group"] in (f"{word} full", f"{word} causal"):
                dim = result["name"].split("d=")[1].split()[0]
                groups.setdefault(f"{dim} {result['group'].split()[1]}", []).append(result)
        if not groups:
            continue
        names = list(
            dict.fromkeys(name for members in groups.values() for result in members for name in result["rate"])
        )
        series = {name: tuple(_mean_rate(members, name) for members in groups.values()) for name in names}
        lengths = [int(r["name"].split("s=")[1].split()[0]) for members in groups.values() for r in members]
        subtitle = (
            f"TFLOP/s on {device}, geometric mean over lengths {min(lengths)} to {max(lengths)}; higher is better"
        )
        found.append(svg.Chart(title, subtitle, "head dimension and mask", "TFLOP/s", tuple(groups), series))
    return found


def _mean_rate(members: list[dict[str, Any]], name: str) -> float | None:
    rates = [result["rate"].get(name) for result in members]
    return None if None in rates else _geomean(rates)


def _short(name: str) -> str:
    """b=16 keys=8192 page=64 as 16 x 8192 p64, to stand below bars."""
    for long, short in (("b=30720 ", ""), ("b=", ""), (" keys=", " x "), ("heads=", "h"), (" page=", " p")):
        name = name.replace(long, short)
    return name.replace(" queries=", " q").replace("d=", "d")


def _chart(title: str, x_label: str, members: list[dict[str, Any]], device: str) -> svg.Chart:
    names = list(dict.fromkeys(name for result in members for name in result["rate"]))
    categories = [result["name"] for result in members]
    categories = [name.split("s=")[1].split()[0] if x_label else _short(name) for name in categories]
    series = {name: tuple(result["rate"].get(name) for result in members) for name in names}
    subtitle = f"{members[0]['unit']} on {device}; higher is better"
    return svg.Chart(title, subtitle, x_label, members[0]["unit"], tuple(categories), series)


def write(folder: Path, content: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda_vs_sdpa.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "cuda_vs_sdpa.md").write_text(markdown(content))
    drawn = charts(content["cells"], content["environment"]["device"])
    if drawn:
        (folder / "cuda_vs_sdpa.svg").write_text(svg.grid(drawn, columns=3))
    drawn = overview(content["cells"], content["environment"]["device"])
    if drawn:
        (folder / "overview.svg").write_text(svg.grid(drawn, columns=1))


# ---------------------------------------------------------------------------------------------------------------- main


def _classic(dtype: str) -> str | None:
    """The first kernel for head dimension 128 that takes every term of a score."""
    names = fw.kernels(fw.device("cuda:0"))
    return next((name for name in names if f"_{dtype.replace('fp', 'f')}_d128_" in name and "modified" in name), None)


def _facts(dtype: str) -> dict[str, str]:
    device = fw.query(fw.device("cuda:0"))
    return {
        "device": device["description"],
        "arch": device["arch"],
        "dtype of the prefill": dtype,
        "flashwave": fw.version(),
        "torch": f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells")
    parser.add_argument("--groups", nargs="+", choices=_GROUPS, default=list(_GROUPS))
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="of the prefill (default bf16)")
    parser.add_argument("--budget", type=float, default=0.12, help="seconds of each side in a cell (default 0.12)")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="start no more cells after so long")
    parser.add_argument("--flash-attn-3", metavar="FILE", help="the library of FlashAttention-3, as one more peer")
    parser.add_argument("--flash-attn-4", metavar="FOLDER", help="where flash-attn-4 is installed, as one more peer")
    parser.add_argument("--classic", metavar="KERNEL", help="the kernel to force for growing keys")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write cuda_vs_sdpa.md, .json and .svg there")
    parser.add_argument("--redraw", type=Path, metavar="DIR", help="measure nothing; write those of DIR's .json again")
    arguments = parser.parse_args(argv)
    if arguments.redraw:
        write(arguments.redraw, json.loads((arguments.redraw / "cuda_vs_sdpa.json").read_text()))
        return 0
    if not torch.cuda.is_available() or torch.version.hip:
        print("error: torch sees no NVIDIA GPU", file=sys.stderr)
        return 1
    if arguments.flash_attn_3:
        torch.ops.load_library(arguments.flash_attn_3)
    if arguments.flash_attn_4:
        cuda_peers.load_flash4(arguments.flash_attn_4)
    start = time.perf_counter()
    copy_rate, host = _copy_rate(arguments.budget), _host_cost()
    results, failed = [], []
    classic = arguments.classic or _classic(arguments.dtype)
    dtype = DTYPES[arguments.dtype]
    todo = cells([group for group in arguments.groups if group in GROUPS], arguments.quick, dtype, classic)
    for group in arguments.groups:
        todo += _MODIFIED[group](arguments.quick, dtype) if group in _MODIFIED else []
    for make in todo:
        if arguments.limit and time.perf_counter() - start > arguments.limit:
            print("error: out of time, cells are left out", file=sys.stderr)
            break
        try:
            results.append(_measure(make(), arguments.budget))
        except Exception as error:  # a cell that fails, for whatever reason, does not cost the others
            failed.append(f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}")
            print(f"error: not timed: {failed[-1]}", file=sys.stderr)
        torch.cuda.empty_cache()
    content = {
        "environment": _facts(arguments.dtype),
        "copy_gb_per_s": copy_rate,
        "host_us": host,
        "cells": results,
        "wrong": failed,
        "groups": summaries(results),
    }
    print(markdown(content), end="")
    if arguments.out:
        write(arguments.out, content)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
