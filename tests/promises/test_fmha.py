"""The HIP FMHA benchmark: its build by plain Makefiles and hipcc, its program, and what it prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import pytest

promise = pytest.mark.promise
GPU = "emu:gfx942"
FOUR = [("16", "256"), ("16", "128"), ("32", "256"), ("32", "128")]  # heads and head dim, in the document's order


@pytest.fixture
def build(root) -> Path:
    if not (root / "build" / "fmha_benchmark").exists():
        pytest.skip("needs build/fmha_benchmark: make build")
    return root / "build"


@pytest.fixture
def emulator(build) -> str:
    if not (build / "libflashwave_emu.so").exists():
        pytest.skip("needs the emulator of AMD GPUs")
    return GPU


@pytest.fixture
def hipcc(root) -> Path:
    """ROCm's compiler driver, or where there is no ROCm a script of that name around a clang, which is what it is."""
    real = shutil.which("hipcc")
    if real:
        return Path(real)
    clang = next(
        (path for path in map(shutil.which, ("clang++-22", "clang++-21", "clang++-20", "clang++-19")) if path), None
    )
    if clang is None:
        pytest.skip("needs hipcc, or a clang 19 or newer to stand in for it")
    folder = root / "out" / "promises" / "rocm" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    llvm = Path(clang).resolve().parent
    for name, text in {"hipcc": f'exec {clang} "$@"', "hipconfig": f"[ $1 = --hipclangpath ] && echo {llvm}"}.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        os.utime(script, (1e9, 1e9))  # what ccache knows a compiler by
    return folder / "hipcc"


@promise(
    "3.11 3.12 3.13 3.14",
    "cmake .. -DCMAKE_CXX_COMPILER=hipcc; make -j; ./fmha_benchmark; make install, for gfx942 alone",
)
@pytest.mark.timeout(3600)
@pytest.mark.skipif("FLASHWAVE_TEST_LONG" not in os.environ, reason="compiles everything anew: FLASHWAVE_TEST_LONG=1")
def test_makefiles_and_hipcc(root, run, hipcc, tmp_path):
    folder = root / "out" / "promises" / "hipcc"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        "CMAKE_GENERATOR": None,
        "FLASHWAVE_NVIDIA_TARGETS": "none",
        "GPU_ARCHS": "gfx942",
        "PATH": f"{hipcc.parent}:{os.environ['PATH']}",
    }
    options = ("-DCMAKE_CXX_COMPILER=hipcc", "-DFLASHWAVE_BUILD_TESTS=OFF", f"-DCMAKE_INSTALL_PREFIX={tmp_path}/prefix")
    configured = run("cmake", root, *options, cwd=folder, **environment).stdout
    assert "AMD kernels for gfx942, by" in configured
    assert (folder / "Makefile").exists()
    # Minutes on a machine whose ccache has seen it, many without; so not through run, which waits ten.
    given = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    made = subprocess.run(
        ["make", f"-j{os.cpu_count()}"], cwd=folder, env=given, capture_output=True, text=True, timeout=3000
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    device = GPU if (folder / "libflashwave_emu.so").exists() else "cpu"
    done = run("./fmha_benchmark", "--device", device, "--batch", "8", cwd=folder).stdout
    assert done.count(", ok") == 4
    run("make", "install", cwd=folder, **environment)
    assert "usage: fmha_benchmark" in run(tmp_path / "prefix" / "bin" / "fmha_benchmark", "--help").stdout
    shutil.rmtree(folder)


@promise("3.11", "hipcc that cannot compile for AMD GPUs: said while configuring")
def test_hipcc_that_will_not_do(root, run, tmp_path):
    gcc = shutil.which("g++")
    if gcc is None:
        pytest.skip("needs g++, as a compiler without AMD GPUs")
    for name, text in {"hipcc": f'exec {gcc} "$@"', "clang++-22": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    options = ("-DCMAKE_CXX_COMPILER=" + str(tmp_path / "hipcc"), f"-DFLASHWAVE_AMD_COMPILER={tmp_path}/hipcc")
    folder = tmp_path / "build"
    choice = {"FLASHWAVE_NVIDIA_TARGETS": "none", "GPU_ARCHS": "", "AMDGPU_TARGETS": "", "PYTORCH_ROCM_ARCH": ""}
    said = run("cmake", "-S", root, "-B", folder, *options, **choice).stdout
    assert re.search(r"Left out: the kernels of AMD GPUs; no clang >= 19 .*tried .*hipcc", said), said


@promise("3.1 3.3 3.14 3.16", "the four configurations, in the document's order, fp16")
def test_four_configurations(build, run):
    done = run(build / "fmha_benchmark", "--device", "cpu", "--batch", "64").stdout
    assert re.findall(r"heads (\d+), seq 1/2, dim (\d+)\]", done) == FOUR
    assert done.count(", ok") == 4


@promise("3.15 3.17 3.18", "GPU information; ms, iterations per second, TFLOPS; sample values")
def test_what_is_printed(build, run):
    done = run(build / "fmha_benchmark", "--device", "cpu", "--batch", "64").stdout
    assert re.search(r"^cpu: .+ \(.+\), \d+ compute units, .*GiB", done)
    assert (
        len(re.findall(r"[\d.]+ ms on average of \d+, [\d.]+ iterations/s, [\d.e-]+ TFLOP/s, [\d.]+ GB/s", done)) == 4
    )
    assert len(re.findall(r"o\[0, 0, 0, 0:5\] =(?: +-?\d+\.\d+){5}", done)) == 4


@promise("3.2 3.4", "[batch, heads, seq, dim], fused: each byte is moved once; a picture of it")
def test_bytes_against_the_least(build, run, emulator, tmp_path):
    done = run(build / "fmha_benchmark", "--device", emulator, "--batch", "2", "--plot", tmp_path / "bytes.svg")
    assert re.findall(r"moved, .* at least: ([\d.]+)x", done.stdout) == ["1.000"] * 4
    drawing = (tmp_path / "bytes.svg").read_text()
    xml.etree.ElementTree.fromstring(drawing)
    assert "bytes moved and the least" in drawing


@promise(
    "3.5 3.6 3.20", "FMHAConfig(batch, hq, hkv, sq, skv, dq, dkv): --config, or an option for each; GQA; two head dims"
)
def test_seven_numbers(build, run):
    program = build / "fmha_benchmark"
    done = run(program, "--device", "cpu", "--config", "3,8,2,5,7,64,32").stdout
    assert "[batch 3, heads 8/2, seq 5/7, dim 64/32]" in done and ", ok" in done
    options = "--batch 3 --heads-q 8 --heads-kv 2 --seq-q 5 --seq-kv 7 --dim-q 64 --dim-kv 32"
    assert (
        run(program, "--device", "cpu", *options.split()).stdout.count("[batch 3, heads 8/2, seq 5/7, dim 64/32]") == 4
    )


@promise("3.14", "--help exits 0; a wrong option exits 2 and says what is taken")
def test_help(build, run):
    assert "--heads-kv" in run(build / "fmha_benchmark", "--help").stdout
    assert "fp16 or bf16" in run(build / "fmha_benchmark", "--dtype", "fp32", status=2).stderr


@promise("3.7 2.24", "MI100, MI210/MI250, MI300: executed on an instruction-level emulator")
@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a", "gfx942"])
def test_gpus(build, run, emulator, gpu):
    if gpu not in run(build / "flashwave", "devices").stdout.split("AMD kernels:")[1].split("\n")[0]:
        pytest.skip(f"this build has no kernels for {gpu}")
    done = run(build / "fmha_benchmark", "--device", "emu:" + gpu, "--batch", "2").stdout
    assert done.count(", ok") == 4 and done.count("amd_tiny_f16") == 4


@promise("3.19", "one launch, in workgroups of 256 work-items")
def test_launch(build, run, emulator):
    words = "b=2 sq=1 sk=2 hq=16 d=128 dtype=f16 layout=bhsd"
    counted = json.loads(run(build / "flashwave", "bench", words, "--device", emulator, "--json").stdout)
    assert [launch["block"][0] for launch in counted["launches"]] == [256]


@promise("3.9", "a CMake that is too old says which is needed")
def test_cmake(root):
    first = (root / "CMakeLists.txt").read_text().splitlines()[0]
    needed = re.fullmatch(r"cmake_minimum_required\(VERSION (3\.\d+)\)", first)[1]
    assert f"CMake {needed}" in (root / "README.md").read_text()


@promise("3.23", "backward, a matrix-core kernel")
def test_backward(build, run, emulator):
    words = "op=bwd b=1 sq=70 hq=4 hk=2 d=128 dtype=f16 causal=1"
    assert "cdna_bwd" in run(build / "flashwave", "explain", words, "--device", emulator).stdout
    assert "1 passed, 0 failed" in run(build / "flashwave", "check", words, "--device", emulator).stdout
