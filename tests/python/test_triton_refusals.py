"""What the Triton backend refuses, and that a Triton that is absent, old or broken is only a reason."""

from __future__ import annotations

import importlib.abc
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import torch

import refusals
from flashwave.backends.triton import backend as triton_backend
from flashwave.backends.triton import support as triton_support
from flashwave.problem import Problem

HERE = Path(__file__).resolve().parent


@pytest.fixture
def fresh():
    """Triton is asked for anew, before and after."""
    for asked in (triton_support.why_no_triton, triton_backend._launcher):
        asked.cache_clear()
    yield
    for asked in (triton_support.why_no_triton, triton_backend._launcher):
        asked.cache_clear()


@pytest.fixture
def any_device(monkeypatch):
    monkeypatch.setattr(triton_backend, "why_no_triton", lambda: None)
    monkeypatch.setattr(triton_backend, "why_no_device", lambda q: None)


def _problem(**changes) -> Problem:
    q = torch.zeros(2, 5, 4, 8, dtype=torch.float16)
    k = torch.zeros(2, 7, 2, 8, dtype=torch.float16)
    return Problem(q, k, k, max_seqlen_q=5, max_seqlen_k=7)._replace(**changes)


def _without_triton() -> dict:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] != "triton"}


def test_an_absent_triton_is_a_reason(fresh):
    with mock.patch.dict(sys.modules, {"triton": None}):
        assert triton_backend.refusal(_problem(), "forward").startswith("Triton is not installed")
        with pytest.raises(RuntimeError, match="not installed"):
            triton_backend.forward(_problem())


def test_an_old_triton_is_a_reason(fresh):
    old = types.ModuleType("triton")
    old.__version__, old.__path__ = "3.1.0", []
    with mock.patch.dict(sys.modules, {"triton": old, "triton.language": types.ModuleType("triton.language")}):
        assert triton_backend.refusal(_problem(), "backward") == "Triton 3.1.0 is older than 3.2"


def test_a_broken_triton_is_a_reason(fresh):
    class Broken(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "triton":
                raise RuntimeError("half installed")

    with (
        mock.patch.dict(sys.modules, _without_triton(), clear=True),
        mock.patch.object(sys, "meta_path", [Broken(), *sys.meta_path]),
    ):
        reason = triton_backend.refusal(_problem(), "forward")
    assert reason == "Triton cannot be imported: RuntimeError: half installed"


def test_importing_the_backend_does_not_import_triton():
    code = "import sys; import flashwave.backends.triton.backend; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(triton_support.interprets(), reason="the interpreter runs on the CPU")
def test_a_cpu_is_no_gpu(fresh, monkeypatch):
    monkeypatch.setattr(triton_backend, "why_no_triton", lambda: None)
    assert triton_backend.refusal(_problem(), "forward") == "Triton runs on GPUs, and q is on cpu"


def test_what_the_kernels_take_is_not_refused(any_device):
    assert triton_backend.refusal(_problem(), "forward") is None
    assert triton_backend.refusal(_problem(bias=torch.zeros(1, 1, 5, 7)), "backward", (True,) * 6) is None


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"q": torch.zeros(2, 5, 4, 8, dtype=torch.float64)}, "fp16, bf16 and fp32"),
        ({"v": torch.zeros(2, 7, 2, 257, dtype=torch.float16)}, "head dims up to 256"),
        ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "block_table"),
        ({"cache_batch_idx": torch.zeros(2, dtype=torch.int32)}, "cache_batch_idx"),
        ({"k_new": torch.zeros(2, 1, 2, 8)}, "k_new"),
        ({"q": torch.empty(0, dtype=torch.float16).as_strided((2, 0, 4, 8), (1, 1 << 24, 8, 1))}, "elements apart"),
        ({"q": torch.zeros(2, 5, 4, 8, dtype=torch.bfloat16)}, "interpreter does not multiply bf16"),
    ],
)
def test_refusals_name_the_reason(any_device, changes, reason):
    assert reason in triton_backend.refusal(_problem(**changes), "forward")


def test_the_softmax_matrix_and_a_large_gradient_of_bias_are_refused(any_device):
    assert "softmax matrix" in triton_backend.refusal(_problem(), "forward", probs=True)
    large = _problem(bias=torch.zeros(1, 1, 1, 1), max_seqlen_q=1 << 15, max_seqlen_k=1 << 15)
    assert "that of bias" in triton_backend.refusal(large, "backward", (True, True, True, False, True, False))
    assert triton_backend.refusal(large, "backward", (True, True, True, False, False, False)) is None


def test_an_unknown_operation_is_an_error():
    with pytest.raises(ValueError, match="op must be"):
        triton_backend.refusal(_problem(), "sideways")


@pytest.mark.skipif(refusals.why_no_triton() is not None, reason="Triton is not here")
@pytest.mark.skipif(triton_support.interprets(), reason="runs the interpreter itself")
def test_the_kernels_in_the_interpreter():
    """The tests of test_triton.py that do without a GPU, in a process whose Triton interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FLASHWAVE_TEST_DEVICE": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_triton.py")]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


# ------------------------------------------------------------------------------------- what the tests make of a refusal

_ASKED_FOR = """
import warnings

import pytest

import flashwave


@pytest.mark.parametrize("reason", [
    "the Triton kernels take head dims up to 256",
    "it failed: CompilationError: at 101:4",
    "Triton runs on GPUs, and q is on cpu",
])
def test_refused(backend, reason):
    raise flashwave.BackendRefused("triton", "backward", reason)


def test_passed_over():
    warnings.warn("flashwave passes over Triton for a backward: it failed", RuntimeWarning)
"""


def test_only_refusals_on_the_list_skip_a_test(tmp_path):
    """A test of Triton that is refused for another reason fails, and so does one whose call left Triton."""
    file = tmp_path / "test_asked_for.py"
    file.write_text(_ASKED_FOR)
    settings = HERE.parents[1] / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "conftest", "-p", "no:cacheprovider", "-c", str(settings)]
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "FLASHWAVE_TEST_DEVICE": "cpu"}
    command += ["--rootdir", str(tmp_path), "--backend", "triton", str(file)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert "= 3 failed, 1 skipped in " in done.stdout, done.stdout[-4000:]
    (skipped,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "the Triton kernels take head dims up to 256" in skipped
