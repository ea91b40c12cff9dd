"""Peak memory of a call, beyond what was there before it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from .. import _library as fw
from ..attention import make_problem
from ..backends.native import calls as native
from .timing import Call, is_out_of_memory
from .workloads import FORWARD, OURS, Inputs, Shape, make_call, padding_of


def available(device: torch.device) -> int:
    """Bytes that a benchmark may take: most of a GPU's free memory, half of what the system calls available."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.9)
    known = Path("/proc/meminfo")
    for line in known.read_text().splitlines() if known.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // 2
    raise RuntimeError("the system does not say how much memory is available: give --memory-budget")


def _peak_on_cuda(call: Call, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(call: Call) -> int:
    """The most bytes alive at once, from the profiler's record of every allocation and release of torch."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    alive = peak = 0
    for _, change in sorted(changes, key=lambda timed: timed[0]):
        alive += change
        peak = max(peak, alive)
    return peak


def peak_of(call: Call, device: torch.device) -> int:
    """Bytes that torch allocates for a call, at its highest point."""
    return _peak_on_cuda(call, device) if device.type == "cuda" else _peak_on_cpu(call)


def _workspace(inputs: Inputs, shape: Shape, backward: bool) -> int:
    """Bytes that the library allocates for itself on the CPU, where torch does not see them."""
    device = native.device_of(inputs.q)
    exec_ = fw.new_exec()
    exec_.num_threads = torch.get_num_threads()
    padding = padding_of(shape, inputs.q.dtype, inputs.q.device)
    lengths = {}
    if padding is not None:
        lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), padding.offsets)
        lengths.update(dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), padding.longest))
    tensors = [tensor if padding is None else tensor[padding.kept] for tensor in inputs[:3]]
    problem = make_problem(*tensors, causal=shape.causal, dropout_p=shape.dropout, **lengths)
    structs = native.layouts(problem, native.DQ_DK_DV if backward else None)
    return int(json.loads(fw.explain(device, *structs, exec_, json=True))["workspace_bytes"])


def peak(name: str, inputs: Inputs, shape: Shape, direction: str) -> int | None:
    """Bytes of results and everything between, at the highest point of one call; None if they do not fit."""
    device = inputs.q.device
    try:
        bytes_ = peak_of(make_call(name, inputs, shape, direction), device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    if name == OURS and device.type != "cuda":
        passes = (False,) if direction == FORWARD else (False, True)
        bytes_ += max(_workspace(inputs, shape, backward) for backward in passes)
    return bytes_
