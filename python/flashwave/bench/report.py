"""Tables as Markdown, SVG and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import _library as fw
from ..attention import explain
from ..backends.native import calls as native
from ..errors import Unsupported
from . import svg
from .plan import Settings
from .workloads import DTYPES, Shape, draw


class Table(NamedTuple):
    name: str
    title: str
    text: str  # what the numbers are
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]
    chart: svg.Chart
    data: list[dict[str, Any]]  # the rows with full precision


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else svg.number(seconds * 1e3)


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


def _kernel(settings: Settings) -> str:
    """What flashwave runs on this device, for the shape of most tables."""
    inputs = draw(Shape(1, 512, 12, 64, settings.causal), settings.dtype, settings.device)
    try:
        native.device_of(inputs.q)
    except Unsupported as error:
        return f"PyTorch operations ({error})"
    plan = json.loads(explain(*inputs[:3], causal=settings.causal, json=True))
    return plan.get("kernel") or "PyTorch operations (the library has no kernel for the problem)"


def environment(settings: Settings) -> dict[str, Any]:
    """Facts that a reader needs to judge the numbers."""
    on_gpu = settings.device.type == "cuda"
    cpu = fw.query(fw.device("cpu"))
    facts = {
        "device": torch.cuda.get_device_name(settings.device) if on_gpu else f"{cpu['description']} ({cpu['arch']})",
        "threads": None if on_gpu else torch.get_num_threads(),
        "dtype": next(name for name, dtype in DTYPES.items() if dtype == settings.dtype),
        "mask": "causal" if settings.causal else "none",
        "dropout": settings.dropout or None,
        "padding": f"{settings.padding:.0%} of the positions" if settings.padding else None,
        "flashwave": f"{fw.version()}, {_kernel(settings)}",
        "torch": torch.__version__,
        "budget": "none" if settings.full else f"{settings.budget:g} s of a peer in a cell",
        "memory budget": f"{settings.memory_budget / 2**30:.1f} GiB",
        "quick": "yes: tiny sizes, for a look at the program, not at its speed" if settings.quick else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def markdown_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def markdown(facts: dict[str, Any], tables: list[Table], with_images: bool) -> str:
    lines = ["# flashwave benchmarks", "", *markdown_table(("", ""), [(k, str(v)) for k, v in facts.items()])]
    for table in tables:
        lines += ["", f"## {table.title}", "", table.text, ""]
        if with_images:
            lines += [f"![{table.title}]({table.name}.svg)", ""]
        lines += markdown_table(table.header, table.rows)
        if table.notes:
            lines += ["", *[f"- {note}" for note in table.notes]]
    return "\n".join(lines) + "\n"


def write(folder: Path, facts: dict[str, Any], tables: list[Table]) -> None:
    """benchmarks.md and an SVG for every table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.md").write_text(markdown(facts, tables, with_images=True))
    for table in tables:
        (folder / f"{table.name}.svg").write_text(svg.draw(table.chart))


def write_json(path: Path, facts: dict[str, Any], tables: list[Table]) -> None:
    content = {
        "environment": facts,
        "tables": [{"name": t.name, "title": t.title, "rows": t.data, "notes": t.notes} for t in tables],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
