"""`python -m flashwave.bench`: the classic tables of FlashAttention on the device that is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from . import memory, report
from .bert import bert_table
from .models import models_table
from .plan import Settings
from .progress import Progress
from .tables import (
    backends_backward_table,
    backends_table,
    backward_table,
    headdim_table,
    masking_table,
    memory_seqlen_table,
    memory_table,
    seqlen_table,
    steps,
)
from .train import train_speed_table, train_table
from .verify import WrongResult
from .workloads import DTYPES, OURS, PEERS

TABLES = {
    "seqlen": seqlen_table,
    "headdim": headdim_table,
    "memory": memory_table,
    "memory-seqlen": memory_seqlen_table,
    "backward": backward_table,
    "masking": masking_table,
    "backends": backends_table,
    "backends-backward": backends_backward_table,
    "bert": bert_table,
    "train": train_table,
    "train-speed": train_speed_table,
    "models": models_table,
}
_NOT_BY_DEFAULT = ("train", "train-speed", "models")  # minutes on a CPU


def choices(known: dict) -> type:
    """An argparse type: names of `known`, with commas between."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse  # type: ignore[return-value]


def part(below: float) -> Callable[[str], float]:
    """An argparse type: a number from 0 to below `below`."""

    def parse(text: str) -> float:
        value = float(text)
        if not 0.0 <= value < below:
            raise argparse.ArgumentTypeError(f"must be at least 0 and less than {below:g}, got {text}")
        return value

    return parse


def device_named(name: str) -> torch.device:
    """An argparse type: auto, cpu, cuda[:i] or rocm[:i] (which torch calls cuda)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda", "rocm"):
        raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or rocm, got {name!r}")
    device = torch.device(name.replace("rocm", "cuda"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"torch sees no GPU for {name!r}")
    return device


def add_device_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=device_named, default="auto", help="auto (default), cpu, cuda or rocm")
    parser.add_argument("--dtype", choices=DTYPES, help="default: fp32 on the CPU, fp16 on a GPU")
    parser.add_argument("--threads", type=int, help="CPU threads, torch's and flashwave's")
    parser.add_argument("--budget", type=float, help="seconds of a peer in a cell (default 4, on a GPU 1)")
    parser.add_argument("--memory-budget", type=float, metavar="GIB", help="default: half of what is available")
    parser.add_argument(
        "--dropout", type=part(1.0), default=0.0, metavar="P", help="of the attention's weights, for all sides"
    )
    parser.add_argument(
        "--padding", type=part(0.5), default=0.0, metavar="PART",
        help="of the positions hold no token: flashwave gets the tokens alone, the others a mask (not BERT)",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashwave.bench", description=__doc__)
    add_device_options(parser)
    usual, others = ",".join(name for name in TABLES if name not in _NOT_BY_DEFAULT), ", ".join(_NOT_BY_DEFAULT)
    parser.add_argument(
        "--tables", type=choices(TABLES), default=usual, help=f"default: {usual}; there are also {others}"
    )
    peers = {name: peer for name, peer in PEERS.items() if name != OURS}
    parser.add_argument(
        "--peers", type=choices(peers), default="standard,sdpa",
        help=f"of {', '.join(peers)}; default: standard,sdpa (tables of backends have their own)",
    )  # fmt: skip
    parser.add_argument("--causal", action="store_true", help="with a causal mask (not BERT)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--full", action="store_true", help="no time budget: batch 16 throughout, nothing left out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write benchmarks.md and an SVG for each table there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    return parser


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings that parsed options mean; threads are set."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    on_gpu = arguments.device.type == "cuda"
    if arguments.device.index is not None and on_gpu:
        torch.cuda.set_device(arguments.device)  # events are recorded on the current device's stream
    budget = arguments.budget
    if budget is None:
        budget = 0.25 if arguments.quick else 1.0 if on_gpu else 4.0
    gibibytes = arguments.memory_budget
    return Settings(
        device=arguments.device,
        dtype=DTYPES[arguments.dtype or ("fp16" if on_gpu else "fp32")],
        peers=arguments.peers,
        causal=arguments.causal,
        quick=arguments.quick,
        full=arguments.full,
        budget=budget,
        memory_budget=memory.available(arguments.device) if gibibytes is None else int(gibibytes * 2**30),
        dropout=arguments.dropout,
        padding=arguments.padding,
    )


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    settings = settings_of(arguments)
    progress = Progress(sum(steps(name, settings) for name in arguments.tables))
    try:
        tables = [TABLES[name](settings, progress) for name in arguments.tables]
    except WrongResult as error:
        progress.close()
        print(f"error: wrong result, nothing is timed: {error}", file=sys.stderr)
        return 1
    progress.close()
    facts = report.environment(settings)
    print(report.markdown(facts, tables, with_images=False), end="")
    if arguments.out:
        report.write(arguments.out, facts, tables)
    if arguments.json:
        report.write_json(arguments.json, facts, tables)
    return 1 if any(row.get("within") is False for table in tables for row in table.data) else 0


if __name__ == "__main__":
    sys.exit(main())
