"""Triton as it is installed compiles the backend's kernels for NVIDIA GPUs, which need not be here.

Launches go the backend's own way up to Triton's launcher: which configuration is tried, what is part of the code. The
results are those of no kernel. tests/emulator/triton runs the same kernels of AMD GPUs, test_triton.py those of a GPU
that is here; where a kernel does not compile, each of the three fails.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import cases
import gradients
import refusals
from cases import Features
from flashwave.backends.triton import support as triton_support

pytestmark = [
    pytest.mark.skipif(refusals.why_no_triton() is not None, reason=str(refusals.why_no_triton())),
    pytest.mark.skipif(triton_support.interprets(), reason="the interpreter compiles nothing"),
    pytest.mark.usefixtures("one_thread"),
]


class Gpu(NamedTuple):
    capability: int
    family: str
    shared_memory: int  # bytes that a workgroup may have


GPUS = {"sm_86": Gpu(86, "ampere", 99 << 10), "sm_90": Gpu(90, "hopper", 227 << 10)}
# Blocks that are not full, so that every loop of the kernels is there.
ODD = {"longest_q": 150, "longest_k": 275, "batch": 1, "heads": (2, 1)}
FEATURES = {
    "window to the left, head dim 64": Features(**ODD, dims=(64, 64), window=(9, -1)),
    "window to the right, head dim 64": Features(**ODD, dims=(64, 64), window=(-1, 5)),
    "window on both sides, head dim 128": Features(**ODD, dims=(128, 128), window=(90, 60)),
    "window on both sides, head dim 256": Features(**ODD, dims=(256, 256), window=(90, 60)),
    "window in blocks that are full": Features(
        longest_q=512, longest_k=512, batch=1, heads=(1, 1), dims=(128, 128), causal=True, window=(100, 0)
    ),
    "dropout, head dim 160": Features(**ODD, dims=(160, 160), dropout=0.1, causal=True),
    "dropout, head dim 256": Features(**ODD, dims=(256, 256), dropout=0.1),
    "dropout, window, terms, head dim 256": Features(
        **ODD, dims=(256, 192), dropout=0.1, window=(9, 4), softcap=2.0, bias="bhqk", slopes="bh", sinks=True
    ),
}


class Compiler:
    """Compiles what would be launched, and refuses what the GPU has no room for, as Triton's launcher does."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.names = gpu, []

    def launch(self, function: Any, grid: Any, arguments: dict[str, Any]) -> None:
        from triton.runtime.errors import OutOfResources

        from triton_compile import compiled
        from triton_launches import specialise

        types, constants, divisible, _, options = specialise(function, arguments)
        target = ("cuda", self.gpu.capability, 32)
        kernel = compiled(function, target, types, constants, divisible, options)
        if kernel.metadata.shared > self.gpu.shared_memory:
            raise OutOfResources(kernel.metadata.shared, self.gpu.shared_memory, "shared memory")
        assert kernel.asm["cubin"]
        self.names.append(function.__name__)


def compile_backward(gpu: str, features: Features, dtype: torch.dtype) -> list[str]:
    """Names of the kernels that were compiled."""
    from flashwave.backends.triton import launch as triton_launch
    from triton_launches import taken_over

    problem = cases.make(features, dtype)
    out = torch.zeros(*problem.q.shape[:-1], problem.v.shape[-1], dtype=dtype)
    lse = torch.zeros(problem.q.shape[0], problem.q.shape[2], problem.q.shape[1])
    compiler = Compiler(GPUS[gpu])
    with taken_over(compiler.launch, GPUS[gpu].family):
        triton_launch.backward(problem, out, None, out, lse, gradients.all_needed(problem))
    return compiler.names


@pytest.fixture(autouse=True)
def first_configuration(monkeypatch):
    monkeypatch.setenv("FLASHWAVE_TRITON_AUTOTUNE", "0")


def test_triton_is_whole():
    """One that is here but cannot be imported, or does not take the kernels, is no reason to skip anything."""
    assert triton_support.why_no_triton() is None


@pytest.mark.parametrize("name", FEATURES)
def test_backward(name):
    names = compile_backward("sm_90", FEATURES[name], torch.bfloat16)
    assert names == ["row_terms", "attention_backward_queries", "attention_backward_keys"]


@pytest.mark.parametrize("name", ["window on both sides, head dim 128", "dropout, head dim 256"])
def test_backward_with_less_shared_memory(name):
    names = compile_backward("sm_86", FEATURES[name], torch.float16)
    assert names == ["row_terms", "attention_backward_queries", "attention_backward_keys"]


def test_a_kernel_that_does_not_compile_is_noticed(monkeypatch):
    import triton_compile

    def refuses(*_: Any) -> None:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(triton_compile, "compiled", refuses)
    with pytest.raises(RuntimeError, match="PassManager"):
        compile_backward("sm_90", FEATURES["dropout, head dim 256"], torch.bfloat16)
