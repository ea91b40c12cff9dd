#!/usr/bin/env python3
"""flashwave.distributed: measured on this machine with a process for each of some threads, and worked out for GPUs.

  bench/distributed_scaling.py measure [--worlds 1 2] [--seqlens 8192 16384] [--json F] [--plot F.svg]
  bench/distributed_scaling.py plot F.json... --plot F.svg
  bench/distributed_scaling.py plan [--plot FOLDER]

`measure` times forward and backward of one causal sequence with gloo, one thread to a process, against one process;
times are wall clock, and beside it the CPU time of the busiest process, which other programs on the machine disturb
less. `plot` draws what several runs found. `plan` is arithmetic: docs/distributed.md says with which numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# ----------------------------------------------------------------------------------------------------------- measuring

_NAMES = ("ring", "allgather", "ulysses")


class Heads(NamedTuple):
    """Of the sequence that is measured."""

    q: int
    k: int
    dim: int


def _memory(what: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" the most since `_forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what))) * 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


Job = tuple[str, int, str]  # way, tokens, dtype


def _worker(rank: int, world: int, file: str, job: Job, heads: Heads, repeats: int, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    import flashwave
    from flashwave import distributed as fd

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    functions = {"ring": fd.ring_attention, "allgather": fd.allgather_attention, "ulysses": fd.ulysses_attention}
    for function in functions.values():  # connections and what is imported late
        x = torch.zeros(1, 8, 8, 16, requires_grad=True)
        function(x, x, x, causal=True).sum().backward()
    name, tokens, dtype = job
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    _forget_peak()
    before = _memory("VmRSS")
    local = tokens // world
    q = torch.randn(1, local, heads.q, heads.dim, dtype=kind).requires_grad_()
    k, v = (torch.randn(1, local, heads.k, heads.dim, dtype=kind).requires_grad_() for _ in range(2))
    layout = "contiguous" if name == "ulysses" else "zigzag"

    def forward() -> torch.Tensor:
        if world == 1:
            return flashwave.flash_attn_func(q, k, v, causal=True)
        return functions[name](q, k, v, causal=True, layout=layout)

    gradient = torch.randn(1, local, heads.q, heads.dim, dtype=kind)
    rows, peaks = [], []
    for repeat in range(repeats + 1):
        dist.barrier()
        clock = [(time.perf_counter(), time.process_time())]
        out = forward()
        clock.append((time.perf_counter(), time.process_time()))
        peaks.append(_memory("VmHWM") - before)
        dist.barrier()
        clock.append((time.perf_counter(), time.process_time()))
        out.backward(gradient)
        clock.append((time.perf_counter(), time.process_time()))
        peaks.append(_memory("VmHWM") - before)
        if repeat or not repeats:  # the first one warms up
            rows.append([clock[1][i] - clock[0][i] for i in (0, 1)] + [clock[3][i] - clock[2][i] for i in (0, 1)])
        q.grad = k.grad = v.grad = None
    best = [min(column) for column in zip(*rows)]
    everybody: list[Any] = [None] * world
    dist.all_gather_object(everybody, (*best, peaks[0], peaks[1]))
    if rank == 0:
        worst = [max(column) for column in zip(*everybody)]
        names = ("forward", "forward_cpu", "backward", "backward_cpu", "forward_peak", "step_peak")
        answers.put({"name": name, "world": world, "tokens": tokens, "dtype": dtype, **dict(zip(names, worst))})
    if world > 1:  # the machine's own speed of a message
        buffer = torch.zeros(4 << 20)
        dist.barrier()
        started = time.perf_counter()
        for _ in range(5):
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, buffer, (rank + 1) % world),
                    dist.P2POp(dist.irecv, torch.empty_like(buffer), (rank - 1) % world),
                ]
            )
            for work in works:
                work.wait()
        seconds = (time.perf_counter() - started) / 5
        if rank == 0:
            answers.put({"name": "message", "world": world, "bytes_per_second": buffer.numel() * 4 / seconds})
    dist.destroy_process_group()


def _bytes_received(name: str, tokens: int, world: int, size: int, heads: Heads) -> int:
    """By one process, forward."""
    local = tokens // world
    if name == "ulysses":
        return local * (2 * heads.q + 2 * max(heads.k, world)) * heads.dim * size * (world - 1) // world
    return (world - 1) * local * 2 * heads.k * heads.dim * size


def _run_world(world: int, job: Job, heads: Heads, repeats: int) -> list[dict]:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, os.path.join(folder, "rendezvous"), job, heads, repeats, answers)
        processes = [context.Process(target=_worker, args=(rank, *arguments)) for rank in range(world)]
        for process in processes:
            process.start()
        found = []
        while any(process.is_alive() for process in processes) or not answers.empty():
            if answers.empty():
                processes[0].join(0.1)
            else:
                found.append(answers.get())
        if any(process.exitcode for process in processes):
            raise SystemExit("a process failed")
    return found


def measure(arguments: argparse.Namespace) -> int:
    rows: list[dict] = []
    heads = Heads(*arguments.heads)
    for world in arguments.worlds:
        # Each length in processes of its own, or the peak of the first would be that of all.
        for tokens in arguments.seqlens:
            for dtype in arguments.dtypes:
                names = arguments.ways if world > 1 else ["one process"]
                for name in names:
                    rows += _run_world(world, (name, tokens, dtype), heads, arguments.repeats)
    alone = {(row["tokens"], row["dtype"]): row for row in rows if row["world"] == 1}
    speeds = {row["world"]: row["bytes_per_second"] for row in rows if row["name"] == "message"}
    columns = "processes|tokens|dtype|forward, ms|speed-up|of CPU time|backward, ms|speed-up|of CPU time"
    header = ["", *columns.split("|"), "bytes received", "message time, ms"]
    header += ["peak memory, forward", "and backward"]
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    table = []
    for row in rows:
        if row["name"] == "message":
            continue
        one = alone[row["tokens"], row["dtype"]]
        size = 4 if row["dtype"] == "float32" else 2
        received = _bytes_received(row["name"], row["tokens"], row["world"], size, heads) if row["world"] > 1 else 0
        message = received / speeds[row["world"]] if row["world"] > 1 else 0.0
        row["speed_up"], row["speed_up_cpu"] = one["forward"] / row["forward"], one["forward_cpu"] / row["forward_cpu"]
        row["backward_speed_up"] = one["backward"] / row["backward"]
        row["backward_speed_up_cpu"] = one["backward_cpu"] / row["backward_cpu"]
        row["bytes_received"], row["message_seconds"] = received, message
        row["forward_memory"] = row["forward_peak"] / one["forward_peak"]
        row["step_memory"] = row["step_peak"] / one["step_peak"]
        table.append(row)
        print(
            f"| {row['name']} | {row['world']} | {row['tokens']} | {row['dtype']} | {row['forward'] * 1e3:.0f} | "
            f"{row['speed_up']:.2f}x | {row['speed_up_cpu']:.2f}x | {row['backward'] * 1e3:.0f} | "
            f"{row['backward_speed_up']:.2f}x | {row['backward_speed_up_cpu']:.2f}x | {received / 2**20:.1f} MiB | "
            f"{message * 1e3:.1f} | {row['forward_peak'] / 2**20:.0f} MiB ({row['forward_memory']:.2f}x) | "
            f"{row['step_peak'] / 2**20:.0f} MiB ({row['step_memory']:.2f}x) |"
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"heads": heads._asdict(), "rows": table, "bytes_per_second": speeds}, indent=1) + "\n"
        )
    if arguments.plot:
        _plot_measured(table, heads, arguments.plot)
    return 0


def _plot_measured(table: list[dict], heads: Heads, path: Path) -> None:
    from flashwave.bench import svg

    shown = [row for row in table if row["world"] > 1]
    categories = sorted({(row["tokens"], row["dtype"], row["world"]) for row in shown})
    charts = []
    for title, figure in (("forward", "speed_up"), ("backward", "backward_speed_up")):
        series = {}
        for name in _NAMES:
            by_place = {(r["tokens"], r["dtype"], r["world"]): r[figure] for r in shown if r["name"] == name}
            if by_place:
                series[name] = tuple(by_place.get(place) for place in categories)
        charts.append(
            svg.Chart(
                f"Causal {title}, one thread to a process, against one process",
                f"speed-up by wall clock; {heads.q} heads, {heads.k} of k and v, dim {heads.dim}",
                "tokens, dtype, processes",
                "speed-up",
                tuple(f"{tokens // 1024}k {dtype} x{world}" for tokens, dtype, world in categories),
                series,
                1.0,
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg.grid(charts, 2))


def plot(arguments: argparse.Namespace) -> int:
    found = [json.loads(file.read_text()) for file in arguments.files]
    heads = {Heads(**one["heads"]) for one in found}
    if len(heads) > 1:
        raise SystemExit(f"the files are of different heads: {heads}")
    _plot_measured([row for one in found for row in one["rows"]], heads.pop(), arguments.plot)
    return 0


# ------------------------------------------------------------------------------------------------------------ planning


class Machine(NamedTuple):
    name: str
    forward: float  # FLOP/s of causal attention that a GPU reaches
    backward: float
    neighbour: float  # bytes a second from one GPU to another of its node, one way
    everybody: float  # the same to all seven others at once, together
    network: float  # a GPU's share of its node's network, one way
    node: int = 8


MACHINES = (
    Machine("H100", 600e12, 450e12, 450e9, 450e9, 50e9),
    Machine("MI300X", 500e12, 350e12, 64e9, 448e9, 50e9),
)
_MODEL = {"heads": 64, "heads_k": 8, "dim": 128}


class Estimate(NamedTuple):
    compute: float
    exposed: float  # of communication, not hidden
    bound: str

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        return self.compute / self.seconds


def estimate(machine: Machine, way: str, tokens: int, world: int) -> Estimate | None:
    """Forward and backward of one causal layer on `world` GPUs; None where it is not possible."""
    heads, heads_k, dim = _MODEL["heads"], _MODEL["heads_k"], _MODEL["dim"]
    local = tokens / world
    flops = 2 * tokens * tokens * heads * dim / world  # half of 4 s^2 h d
    forward, backward = flops / machine.forward, 2.5 * flops / machine.backward
    inside = world <= machine.node
    one, many = (machine.neighbour, machine.everybody) if inside else (machine.network, machine.network)
    kv = 2 * local * heads_k * dim * 2  # bytes of a shard of k and v
    if way == "ring":
        steps = world
        f, b = forward / steps, backward / steps
        send_f, send_b = kv / one, (kv + 2 * kv) / one  # backward: gradients in fp32 go along
        exposed = (steps - 1) * (max(send_f - f, 0) + max(send_b - b, 0)) + 2 * kv / one
        return Estimate(forward + backward, exposed, "link" if send_f > f or send_b > b else "compute")
    if way == "allgather":
        groups = heads_k  # heads that are gathered at a time
        gather = kv * (world - 1) / many
        scatter = 2 * kv * (world - 1) / many
        hidden_f, hidden_b = forward * (groups - 1) / groups, backward * (groups - 1) / groups
        exposed = max(gather / groups, gather - hidden_f) + max(
            (gather + scatter) / groups, gather + scatter - hidden_b
        )
        return Estimate(forward + backward, exposed, "link" if gather > hidden_f else "compute")
    if heads % world:
        return None
    shared = max(heads_k, world) / heads_k
    moved = local * dim * 2 * (2 * heads + 2 * heads_k * shared) * (world - 1) / world
    exposed = moved / many * (1 + 2)  # backward: o, dO, dq, dk and dv and again q, k, v
    return Estimate(forward + backward, exposed, "link" if exposed > forward + backward else "compute")


def least_shard(machine: Machine, network: bool) -> float:
    """Tokens of a shard from which on a ring's step computes longer than it sends, forward and backward."""
    link = machine.network if network else machine.neighbour
    ratio = _MODEL["heads_k"] / _MODEL["heads"]
    # 2 n^2 h d / F >= 4 n h_k d / B, and 5 n^2 h d / F_b >= 12 n h_k d / B
    return max(2 * ratio * machine.forward / link, 2.4 * ratio * machine.backward / link)


def plan(arguments: argparse.Namespace) -> int:
    from flashwave.bench import svg

    print(
        f"One causal layer, forward and backward: {_MODEL['heads']} heads, {_MODEL['heads_k']} of k and v, dim "
        f"{_MODEL['dim']}, bf16.\n"
    )
    print("| | shard from which a ring is hidden: in a node | between nodes |\n|---|---|---|")
    for machine in MACHINES:
        print(
            f"| {machine.name} | {least_shard(machine, False):.0f} tokens | {least_shard(machine, True):.0f} tokens |"
        )
    print()
    print("| machine | tokens | GPUs | compute, ms | ring | all-gather | Ulysses |\n|---|---|---|---|---|---|---|")
    for machine in MACHINES:
        charts = []
        for tokens in (1 << 20, 10 << 20):
            worlds = (8, 64, 1024)
            cells: dict[str, list[float | None]] = {way: [] for way in _NAMES}
            for world in worlds:
                found = {way: estimate(machine, way, tokens, world) for way in _NAMES}
                for way, one in found.items():
                    cells[way].append(None if one is None else one.efficiency)
                words = [
                    "-" if one is None else f"{one.seconds * 1e3:.4g} ms, {one.efficiency:.0%}"
                    for one in found.values()
                ]
                compute = found["ring"].compute * 1e3
                print(f"| {machine.name} | {tokens >> 20}M | {world} | {compute:.4g} | {' | '.join(words)} |")
            charts.append(
                svg.Chart(
                    f"{machine.name}: share of the time that is compute, {tokens >> 20}M tokens",
                    "one causal layer, forward and backward, 64 heads, 8 of k and v, dim 128, bf16; worked out",
                    "GPUs",
                    "share",
                    tuple(str(world) for world in worlds),
                    {way: tuple(values) for way, values in cells.items()},
                    1.0,
                )
            )
        if arguments.plot:
            arguments.plot.mkdir(parents=True, exist_ok=True)
            (arguments.plot / f"distributed-{machine.name.lower()}.svg").write_text(svg.grid(charts, 2))
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--worlds", type=int, nargs="+", default=[1, 2])
    measuring.add_argument("--seqlens", type=int, nargs="+", default=[8192, 16384])
    measuring.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    of_heads = ("HEADS", "HEADS_K", "DIM")
    measuring.add_argument("--heads", type=int, nargs=3, metavar=of_heads, default=[32, 8, 64])
    measuring.add_argument("--ways", nargs="+", choices=_NAMES, default=list(_NAMES))
    measuring.add_argument("--repeats", type=int, default=3)
    measuring.add_argument("--json", type=Path)
    measuring.add_argument("--plot", type=Path)
    drawing = commands.add_parser("plot")
    drawing.add_argument("files", type=Path, nargs="+")
    drawing.add_argument("--plot", type=Path, required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("--plot", type=Path)
    arguments = parser.parse_args(argv)
    return {"measure": measure, "plot": plot, "plan": plan}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
