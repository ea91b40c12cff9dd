#!/usr/bin/env python3
"""The figures that the CPU kernels are held to, measured on this machine: each with its goal, and whether it is met.

    bench/cpu_gates.py [--tool build/flashwave] [--only loop,decode] [--json FILE]

Gates, one thread unless they say otherwise; those of tiles are asked only on a CPU that has AMX:

    kernels   the smoke suite through each AMX kernel by name, and how tiles are asked for (build/unit_device)
    loop      bf16 forward, 4096 and 8192 keys, of the bare loop of the tile unit
    threads   two threads over one, bf16 and fp32, forward and backward
    decode    bf16, one query on 32,768 keys, 32 heads on 8, of a loop that only reads; contiguous and in pages of 16
    sdpa      bf16 and fp32 over torch's scaled_dot_product_attention (bench/python_vs_sdpa.py)
    split     bf16 on tiles over fp16 on AVX-512: docs/decisions/0012-*.md says what follows. Has no goal.

The exit status is 0 if every gate that was asked is met.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Gate(NamedTuple):
    name: str
    value: float
    goal: float | None  # None: a number to know, not one to reach

    @property
    def met(self) -> bool:
        return self.goal is None or self.value >= self.goal


class Machine(NamedTuple):
    tool: Path
    kernels: list[str]  # that this CPU runs

    @property
    def tiles(self) -> bool:
        return "amx_fwd_m32n128" in self.kernels


def look(tool: Path) -> Machine:
    """The kernels of other CPUs are listed, too, so the tool is asked to plan with each."""
    kernels = []
    names = [
        "amx_fwd_m32n128",
        "amx_decode_m16n64",
        "amx_bwd_m256n128",
        "amx_split_fwd_m32n128",
        "amx_split_bwd_m256n128",
    ]
    for kernel in names:
        dtype = "f16" if "split" in kernel else "bf16"
        words = ["d=64", f"dtype={dtype}", "sq=1" if "decode" in kernel else "sq=128", "sk=128"]
        words += ["op=bwd"] if "bwd" in kernel else []
        command = [tool, "explain", *words, f"kernel={kernel}", "--device", "cpu", "--json"]
        asked = subprocess.run(command, capture_output=True, text=True)
        if asked.returncode == 0 and json.loads(asked.stdout)["kernel"] == kernel:
            kernels.append(kernel)
    return Machine(tool, kernels)


def bench(machine: Machine, words: str, rounds: int = 5) -> dict[str, Any]:
    command = [machine.tool, "bench", *words.split(), "--device", "cpu", "--rounds", str(rounds), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if not found["ok"]:
        raise SystemExit(f"cpu_gates: wrong result of {words}: {found['fault']}")
    return found


def kernels(machine: Machine) -> list[Gate]:
    gates = []
    for kernel in machine.kernels:
        check = [machine.tool, "check", "--device", "cpu", "--suite", "smoke", "--kernel", kernel]
        gates.append(Gate(f"smoke suite by {kernel}", float(subprocess.run(check).returncode == 0), 1.0))
    if machine.tiles:
        asking = [machine.tool.parent / "unit_device", "--gtest_filter=Amx*"]
        asked = subprocess.run(asking, capture_output=True, text=True)
        print(asked.stdout, end="")
        met = asked.returncode == 0 and "SKIPPED" not in asked.stdout
        gates.append(Gate("tiles: asked for, refused, threads, fork", float(met), 1.0))
    return gates


def loop(machine: Machine) -> list[Gate]:
    if not machine.tiles:
        return []
    gates = []
    for dim, goal in ((64, 0.36), (128, 0.42)):
        for keys in (4096, 8192):
            found = bench(machine, f"dtype=bf16 threads=1 b=1 hq=1 sq={keys} d={dim}")
            note = f", unit throttled in {found['throttled_samples']} samples" if found["throttled_samples"] else ""
            gates.append(Gate(f"of the bare loop, d {dim}, {keys} keys{note}", found["ratio_p50"], goal))
    return gates


def threads(machine: Machine) -> list[Gate]:
    if len(os.sched_getaffinity(0)) < 2:
        return []
    gates = []
    for dtype in ("bf16", "f32"):
        for direction in ("fwd", "bwd"):
            words = f"op={direction} dtype={dtype} b=1 hq=4 sq=2048 d=64"
            # In turns: the tile unit may be slow for seconds, for one of the two alone.
            ratios = []
            for _ in range(3):
                one, two = (bench(machine, f"{words} threads={n}", 2)["ms_p50"] for n in (1, 2))
                ratios.append(one / two)
            gates.append(Gate(f"two threads over one, {dtype} {direction}", statistics.median(ratios), 1.85))
    return gates


def decode(machine: Machine) -> list[Gate]:
    gates = []
    for name, words, goal in (("contiguous", "", 0.85), ("pages of 16", " page=16", 0.80)):
        found = bench(machine, f"dtype=bf16 threads=1 b=1 hq=32 hk=8 sq=1 sk=32768 d=128{words}")
        gates.append(Gate(f"decode of a loop that reads, {name}", found["kv_gbs"] / found["read_gbs"], goal))
    return gates


def over_sdpa(dtypes: list[str], limit: str | None) -> dict[str, Any]:
    """What bench/python_vs_sdpa.py finds, with torch's oneDNN limited to an instruction set or not."""
    environment = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": limit} if limit else {})}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.json"
        script = [sys.executable, ROOT / "bench" / "python_vs_sdpa.py", "--threads", "1", "--json", file]
        script += ["--budget", "1", "--seqlens", "512", "1024", "2048", "4096", "8192", "--dtypes", *dtypes]
        subprocess.run(script, check=True, env=environment)
        return json.loads(file.read_text())


def sdpa(machine: Machine) -> list[Gate]:
    """The goals of bf16 are those of a CPU where oneDNN finds no tiles (CPUID leaf 1Dh is empty) and SDPA has them by
    MKL alone. Where oneDNN does find them, SDPA with both is measured, too."""
    goals = {("bf16", "forward"): (2.5, 1.5), ("bf16", "backward"): (6.0, 3.0)}

    def gates(found: dict[str, Any], name: str) -> Iterator[Gate]:
        for group in found["groups"]:
            mean, worst = goals.get((group["dtype"], group["direction"]), (None, 1.05)) if not name else (None, None)
            which = f"{group['dtype']} {group['direction']} over SDPA{name}"
            yield Gate(f"{which}, geometric mean", group["geomean"], mean)
            yield Gate(f"{which}, worst ({group['worst']})", group["worst_ratio"], worst)

    if not machine.tiles:
        return list(gates(over_sdpa(["fp32"], None), ""))
    all_gates = list(gates(over_sdpa(["fp32", "bf16"], "AVX512_CORE_FP16"), ""))
    unlimited = over_sdpa(["bf16"], None)
    if "AMX" in unlimited["environment"]["oneDNN, in its own words"]:
        all_gates += gates(unlimited, ", oneDNN on tiles as well")
    return all_gates


def split(machine: Machine) -> list[Gate]:
    if not machine.tiles:
        return []
    gates = []
    for dim in (64, 128):
        for direction in ("fwd", "bwd"):
            words = f"op={direction} threads=1 b=1 hq=4 sq=4096 d={dim}"
            tiles, vectors = (bench(machine, f"{words} dtype={dtype}")["gflops"] for dtype in ("bf16", "f16"))
            gates.append(Gate(f"bf16 on tiles over fp16 on AVX-512, d {dim} {direction}", tiles / vectors, None))
    return gates


GATES = {"kernels": kernels, "loop": loop, "threads": threads, "decode": decode, "sdpa": sdpa, "split": split}


def table(gates: list[Gate]) -> str:
    width = max(len(gate.name) for gate in gates)
    lines = []
    for gate in gates:
        goal = "" if gate.goal is None else f"  goal {gate.goal:4.2f}  {'met' if gate.met else 'MISSED'}"
        lines.append(f"{gate.name:{width}}  {gate.value:6.3f}{goal}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=Path, default=ROOT / "build" / "flashwave")
    parser.add_argument("--only", default=",".join(GATES), help="some of: " + ", ".join(GATES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    arguments = parser.parse_args(argv)
    chosen = arguments.only.split(",")
    unknown = [name for name in chosen if name not in GATES]
    if unknown:
        parser.error(f"no gate {', '.join(unknown)}; there are {', '.join(GATES)}")
    if not arguments.tool.exists():
        parser.error(f"no {arguments.tool}; run 'make build' first")
    machine = look(arguments.tool)
    print("AMX: " + (", ".join(machine.kernels) if machine.tiles else "not on this CPU; its gates are left out"))
    gates: list[Gate] = []
    for name in chosen:
        gates += GATES[name](machine)
        print(f"{name}: done", flush=True)
    if not gates:
        print("cpu_gates: nothing to measure on this CPU", file=sys.stderr)
        return 1
    print(table(gates))
    if arguments.json:
        found = [{**gate._asdict(), "met": gate.met} for gate in gates if math.isfinite(gate.value)]
        arguments.json.write_text(json.dumps({"kernels": machine.kernels, "gates": found}, indent=1) + "\n")
    return 0 if all(gate.met for gate in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
