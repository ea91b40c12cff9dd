"""python -m flashwave.doctor: what it says is so, and it says so when something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import flashwave
from flashwave import _library
from flashwave.doctor import checks, machine, report

PACKAGE = Path(flashwave.__file__).parent


def _run(*arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables}
    command = [sys.executable, "-m", "flashwave.doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_command():
    done = _run("--json", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["flashwave"]["version"] == flashwave.__version__
    assert Path(found["flashwave"]["library"]).exists()
    assert Path(found["flashwave"]["package"]).samefile(PACKAGE)
    assert found["versions"]["torch"] == torch.__version__.split("+")[0] or torch.__version__
    assert found["devices"][0]["name"] == "cpu"
    results = found["checks"]["cpu"]["flashwave"]
    assert [(line["dtype"], line["shape"]) for line in results] == [
        (dtype, shape) for dtype in checks.DTYPES for shape in checks.SHAPES
    ]
    assert all(line["right"] for line in results)
    by_dtype = {line["dtype"]: line for line in results}
    assert by_dtype["bfloat16"]["fwd"].startswith("native ") and by_dtype["bfloat16"]["bwd"].startswith("native ")
    assert by_dtype["float64"]["fwd"].startswith("torch ") and "float64" in by_dtype["float64"]["fwd"]  # and why
    sdpa = found["checks"]["cpu"]["torch's scaled_dot_product_attention"]
    assert {line["dtype"] for line in sdpa} == set(checks.DTYPES)
    text = report.text(found)
    for part in ("libcuda", "native avx" if "avx" in found["devices"][0]["arch"] else "native ", "missing", "float16"):
        assert part in text


def test_a_wrong_result_is_a_failure(monkeypatch):
    lines = {"dtype": "float32", "shape": "prefill", "forward error": 1e-3, "backward error": 1e-7}
    monkeypatch.setattr(checks, "_child_lines", lambda *_: ([lines], None))
    results = checks.run("flashwave", "cpu", 10)
    assert [line["right"] for line in results] == [False]
    found = {"checks": {"cpu": {"flashwave": results}}}
    assert report.failures(found) == results
    assert "WRONG" in report._result_lines(results[0])[0]


def test_the_check_itself_can_fail(monkeypatch):
    """An attention that is a little off is seen by what the child computes."""
    monkeypatch.setattr(checks, "_flashwave", lambda q, k, v: flashwave.flash_attn_func(q, k, v, 0.0, 0.13, True))
    found = checks._torch("flashwave", "cpu", "float32", "prefill")
    assert not checks._is_right({"dtype": "float32", **found})


def test_a_process_that_dies_is_a_line(tmp_path, monkeypatch):
    """The dtypes behind the one that killed it are still checked."""
    script = tmp_path / "python"
    script.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, os, signal, sys
        for dtype in sys.argv[-1].split(","):
            print(json.dumps({{"begins": "", "dtype": dtype, "shape": "prefill"}}), flush=True)
            if dtype == "bfloat16":
                os.kill(os.getpid(), signal.SIGILL)
            print(json.dumps({{"dtype": dtype, "shape": "prefill", "forward error": 0.0}}), flush=True)
        """)
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    results = checks.run("sdpa", "cpu", 60)
    assert [(line["dtype"], line["right"]) for line in results] == [
        ("float16", True), ("bfloat16", False), ("float32", True), ("float64", True),
    ]  # fmt: skip
    assert results[1]["error"] == f"killed by {signal.Signals.SIGILL.name}"
    found = machine.facts()
    found["checks"] = {"cpu": {"flashwave": [], "torch's": results}}
    assert any("ONEDNN_MAX_CPU_ISA" in line for line in machine.missing(found))


def test_a_process_that_hangs_is_a_line(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport json, time\n"
        'print(json.dumps({"begins": "", "dtype": "float64", "shape": "prefill"}), flush=True)\ntime.sleep(60)\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(checks, "DTYPES", ("float64",))
    results = checks.run("sdpa", "cpu", 1.0)
    assert results[0]["error"] == "did not end within 1 s" and not results[0]["right"]


def test_what_is_missing(monkeypatch):
    found = machine.facts()
    del found["torch"]
    assert any("pip install flashwave[torch]" in line for line in machine.missing(found))
    found["torch"] = {"devices": ["cpu"], "built for": "CPU"}
    found["devices"].append({"kind": "hip"})
    assert any("PyTorch for the GPU" in line for line in machine.missing(found))
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/kfd")
    found["devices"].pop()
    assert any("/dev/kfd is there" in line for line in machine.missing(found))


def test_without_the_library(monkeypatch):
    """The case for which it is called first of all."""
    for name, value in (("lib", None), ("path", None), ("why_no_library", "no libflashwave.so in this folder")):
        monkeypatch.setattr(_library, name, value)
    found = {**machine.facts(), "checks": {}}
    found["missing"] = machine.missing(found)
    assert any(line.startswith("the library: no libflashwave.so in this folder") for line in found["missing"])
    text = report.text(found)
    assert re.search(r"^  library +none$", text, re.M) and "make wheel" in text


def test_the_driver_is_not_the_runtime(monkeypatch):
    maps = [f"7f00-7f01 r-xp 0 fe:00 1 /usr/lib/{name}" for name in ("libcudart.so.13", "libcuda.so.1", "libc.so.6")]
    monkeypatch.setattr(Path, "read_text", lambda self: "\n".join(maps[:1]))
    assert machine.loaded("libcuda") is None and machine.loaded("libcudart") == "/usr/lib/libcudart.so.13"
    monkeypatch.setattr(Path, "read_text", lambda self: "\n".join(maps))
    assert machine.loaded("libcuda") == "/usr/lib/libcuda.so.1"


def test_kernels_that_the_build_lacks():
    found = machine.facts()
    assert [note.split()[0] for note in found["flashwave"]["kernels"]] == ["AMD", "NVIDIA"]
    found["flashwave"]["kernels"] = ["AMD kernels: left out; no clang >= 19", "NVIDIA kernels: left out; no nvcc"]
    found["devices"] = [{"kind": "cpu"}, {"kind": "hip"}]
    lines = [line for line in machine.missing(found) if "in this build" in line]
    assert lines == ["kernels of this machine's GPU, in this build: AMD kernels: left out; no clang >= 19"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_without_torch(dtype):
    """What is checked where there is only NumPy."""
    pytest.importorskip("numpy")
    found = checks._arrays(dtype, "prefill")
    assert checks._is_right({"dtype": dtype, **found}) and found["fwd"].startswith("native ")
