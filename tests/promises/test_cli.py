"""The command line as somebody new to it would use it."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import subprocess
from pathlib import Path

import pytest

promise = pytest.mark.promise
PROBLEM = ("b=2", "sq=1024", "hq=8", "hk=2", "d=64", "dtype=bf16", "causal=1")


@pytest.fixture
def tool(root) -> Path:
    if not (root / "build" / "flashwave").exists():
        pytest.skip("needs build/flashwave: make build")
    return root / "build" / "flashwave"


@promise("", "flashwave explain --device sm_90, sm_80, gfx942, gfx1100: GPUs that are not here")
@pytest.mark.parametrize(
    "gpu, kernel", [("sm_90", "hopper_"), ("sm_80", "ampere_"), ("gfx942", "cdna_"), ("gfx1100", "rdna3_")]
)
def test_explain_for_absent_gpus(tool, gpu, kernel):
    done = subprocess.run(
        [tool, "explain", *PROBLEM, "--device", gpu, "--json"], capture_output=True, text=True, timeout=60
    )
    answer = json.loads(done.stdout)
    if "no machine code" in answer.get("message", ""):
        pytest.skip(f"this build has no kernels for {gpu}")
    assert answer["kernel"].startswith(kernel) and not answer["slow_path"]


@promise("", "flashwave support --device cpu,gfx90a,gfx1201,sm_80,sm_90")
def test_support_for_absent_gpus(tool, run):
    table = run(tool, "support", "--device", "cpu,gfx90a,gfx1201,sm_80,sm_90").stdout
    assert all(f"{name} backward" in table for name in ("cpu", "gfx90a", "gfx1201", "sm_80", "sm_90"))


@promise("", "flashwave explain: the kernel and the reasons on one page, no kernels of other GPUs; --all has every one")
def test_explain_is_a_page(tool, run):
    devices = run(tool, "devices").stdout
    gpu = "gfx942" if "gfx942" in devices.split("AMD kernels:")[1] else None
    if gpu is None:
        pytest.skip("this build has no kernels for gfx942")
    page = run(tool, "explain", *PROBLEM, "--device", gpu).stdout
    assert len(page.splitlines()) < 25 and "rdna" not in page and "_f16_" not in page
    assert len(run(tool, "explain", *PROBLEM, "--device", gpu, "--all").stdout.splitlines()) > 50


@promise("", "one list of devices: flashwave devices, the message of a wrong name, docs/devices.md")
def test_one_list_of_devices(tool, root, run):
    message = run(tool, "explain", "sq=8", "--device", "emu:gfx1", status=1).stderr
    if "gfx942" not in message:
        pytest.skip("needs the emulator")
    named = set(re.findall(r"gfx\w{3,}", message))
    page = (root / "docs" / "devices.md").read_text()
    documented = page.split("`emu:` takes ")[1].split(". It needs")[0]
    assert named == set(re.findall(r"gfx\w{3,}", documented))
    listed = set(re.findall(r"emu:(gfx\w+)", run(tool, "devices").stdout))
    assert listed <= named  # those of them that this build has kernels for
    planned = run(tool, "explain", "sq=8", "--device", "sm_1", status=1).stderr
    architectures = page.split("of that\narchitecture: ")[1].split(". Whatever")[0]
    pattern = r"(?:gfx|sm_)[0-9a-f]{2,}"
    assert set(re.findall(pattern, planned)) - {"sm_1"} == set(re.findall(pattern, architectures))


@promise("", "memory that does not suffice: how much is needed, not std::bad_alloc")
def test_out_of_memory(tool):
    huge = subprocess.run(
        [tool, "check", "--device", "cpu", "b=64 sq=65536 hq=64 d=128"], capture_output=True, text=True
    )
    assert huge.returncode == 1 and "its tensors take at least" in huge.stdout

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    for command in (
        [tool, "bench", "--device", "cpu", "b=1 sq=32768 hq=40 d=128"],
        [tool.parent / "fmha_benchmark", "--device", "cpu"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "bad_alloc" not in said and "memory" in said.lower(), said


@promise(
    "",
    "flashwave bench --plot /no/such/folder/x.svg; bench dropout=0.1; explain nonsense=1: refused before any work",
)
def test_checked_before_work(tool, run):
    for words, said in (
        (("bench", "sq=8", "--plot", "/no/such/folder/x.svg"), "/no/such/folder/x.svg cannot be written"),
        (("bench", "dropout=0.1"), "'check' can"),
        (("explain", "nonsense=1"), "flashwave explain --help"),
    ):
        done = run(tool, *words, status=2)
        assert said in done.stderr and done.stdout == ""


@promise("", "fmha_benchmark says what it does on a terminal, and a pipe gets each configuration when it is done")
def test_progress(tool):
    program = tool.parent / "fmha_benchmark"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program, "--device", "cpu", "--batch", "64"], stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        first = process.stdout.readline()
        rest = process.stdout.read()
        drawn = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how a closed terminal ends
                break
            if not part:
                break
            drawn += part
    os.close(ours)
    assert process.returncode == 0 and first.startswith(b"cpu: ") and rest.count(b", ok") == 4
    assert b"filling the tensors" in drawn and b"s left" in drawn


@promise("", "FLASHWAVE_NUM_THREADS=abc: an error on the command line; docs/errors.md says what torch does")
def test_number_of_threads(tool, root, run):
    assert (
        "FLASHWAVE_NUM_THREADS must be a whole number"
        in run(tool, "check", "b=4 sq=512 hq=8", "--device", "cpu", status=1, FLASHWAVE_NUM_THREADS="abc").stdout
    )
    assert "torch's threads" in (root / "docs" / "errors.md").read_text()


@promise("", "docs/adding-a-kernel.md and docs/emulator.md: built first, then build/flashwave")
def test_documents_build_first(root):
    page = (root / "docs" / "adding-a-kernel.md").read_text()
    assert page.index("make build") < page.index("build/flashwave explain")
    for name in ("adding-a-kernel.md", "emulator.md"):
        blocks = re.findall(r"```\n(.*?)```", (root / "docs" / name).read_text(), re.S)
        commands = [
            line for block in blocks for line in block.splitlines() if re.search(r"(^|\s)flashwave(-emu)? ", line)
        ]
        assert commands == [], name


@promise(
    "4.23 4.24 4.25",
    "FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE, _USE_RTZ and _DETERMINISTIC, on the kernels of AMD GPUs, from C",
)
def test_switches_of_the_rocm_fork(tool, run):
    if not (tool.parent / "libflashwave_emu.so").exists():
        pytest.skip("needs the emulator of AMD GPUs")

    def checked(words="b=1 sq=130 hq=2 d=64 dtype=bf16", **switches):
        return json.loads(run(tool, "check", words, "--json", "--device", "emu:gfx942", **switches).stdout)

    prefix = "FLASH_ATTENTION_INTERNAL_"
    plain, fast = checked(), checked(**{prefix + "PERFORMANCE_MODE": "1"})
    assert not plain["kernel"].endswith("_rtz") and fast["kernel"] == plain["kernel"] + "_rtz"
    error = {answer["kernel"]: answer["tensors"][0]["error"] for answer in (plain, fast)}
    assert len(set(error.values())) == 2, "other bits"
    assert checked(**{prefix + "USE_RTZ": "1"})["kernel"] == fast["kernel"]
    assert checked(**{prefix + "PERFORMANCE_MODE": "1", prefix + "USE_RTZ": "0"})["kernel"] == plain["kernel"]
    # fp16 tensors: products of bf16, results in fp16
    for words in ("b=1 sq=130 hq=2 d=64 dtype=f16", "op=bwd b=1 sq=300 hq=2 d=64 dtype=f16"):
        plain, fast = checked(words), checked(words, **{prefix + "PERFORMANCE_MODE": "1"})
        assert "_f16_" in plain["kernel"] and "_bf16_" in fast["kernel"]
        for exact, rounded in zip(plain["tensors"], fast["tensors"]):
            assert rounded["error"] > 1.5 * exact["error"], "8 bits in place of 11"
    explain = ("explain", "op=bwd b=1 sq=300 hq=4 d=64 dtype=bf16", "--device", "emu:gfx942")
    assert "deterministic=1" in run(tool, *explain, **{prefix + "DETERMINISTIC": "1"}).stdout
