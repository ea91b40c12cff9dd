"""CUDA graphs of calls: their time is the GPU's alone, whatever a call costs on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .timing import Call, Measured, is_out_of_memory, measure


def captured(calls: Sequence[Call], repeats: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of all the calls, one after the other, `repeats` times. Each has run before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    return graph


def measure_graphs(
    calls: dict[str, Sequence[Call]], device: torch.device, budget: float, repeats: int = 1
) -> dict[str, Measured]:
    """Seconds of one call of each name, from graphs that take turns.

    The calls of a name differ in their tensors: with more bytes in all than the cache holds, none finds its own there.
    """
    graphs = {}
    for name, given in calls.items():
        try:
            graphs[name] = captured(given, repeats)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            torch.cuda.empty_cache()
    found = measure({name: graph.replay for name, graph in graphs.items()}, device, budget)
    measured = dict.fromkeys(calls, Measured(()))
    for name, samples in found.items():
        parts = len(calls[name]) * repeats
        measured[name] = Measured(tuple(seconds / parts for seconds in samples.samples))
    return measured
