"""The package as it is installed from a wheel; skipped where the package under test is a source tree.

FLASHWAVE_TEST_WHEEL=1 (scripts/test-python) says that it must be a wheel; FLASHWAVE_TEST_SHIM names that of the shim.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import elf
import flashwave

PACKAGE = Path(flashwave.__file__).parent
IMPORT_BUDGET_MS = 50
GLIBC_PARTS = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+")


def _not_a_wheel(reason: str) -> None:
    if os.environ.get("FLASHWAVE_TEST_WHEEL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def wheel() -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution("flashwave")
    except importlib.metadata.PackageNotFoundError:
        _not_a_wheel("flashwave is not installed: a source tree is under test")
    if Path(distribution.locate_file("flashwave")) != PACKAGE:
        _not_a_wheel(f"{PACKAGE} is under test, not what is installed")
    return distribution


@pytest.fixture
def libraries(wheel: importlib.metadata.Distribution) -> list[Path]:
    """Every shared library that the wheel brings."""
    found = [Path(wheel.locate_file(file)) for file in wheel.files or () if file.suffix == ".so"]
    assert PACKAGE / "lib" / "libflashwave.so" in found
    return found


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_record_names_what_the_package_needs(wheel):
    recorded = {str(file): file for file in wheel.files}
    for name in (
        "flashwave/lib/libflashwave.so",
        "flashwave/lib/libflashwave_torch.so",
        "flashwave/include/flashwave/flashwave.h",
        "flashwave/py.typed",
        "flashwave/__init__.py",
    ):
        content = Path(wheel.locate_file(name)).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert recorded[name].hash.value == digest, name


def test_library_of_the_wheel_is_the_one_that_is_loaded(wheel):
    code = "import flashwave; print(*[line.split()[-1] for line in open('/proc/self/maps') if 'libflashwave' in line])"
    assert set(run_python(code).split()) == {str(PACKAGE / "lib" / "libflashwave.so")}


def test_emulator_of_the_wheel_is_found(wheel):
    """And a kernel of an AMD GPU runs on it, if the wheel was built with them."""
    emulator = PACKAGE / "lib" / "libflashwave_emu.so"
    if not emulator.exists():
        _not_a_wheel("this wheel was built where there was no emulator to carry")
    code = """
import numpy, flashwave
try:
    print(numpy.unique(flashwave.attention(*[numpy.ones((1, 4, 1, 8), numpy.float32)] * 3, device="emu:gfx942")))
except flashwave.errors.Unsupported as error:
    print(error)
print(*[line.split()[-1] for line in open("/proc/self/maps") if "libflashwave_emu" in line])
"""
    said, loaded = run_python(code).splitlines()
    assert said == "[1.]" or "there are no kernels for emu:gfx942" in said
    assert set(loaded.split()) == {str(emulator)}


def test_versions_agree(wheel):
    assert wheel.version == flashwave.__version__ == flashwave._library.version()


def test_tag_says_which_glibc_is_needed(wheel, libraries):
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", wheel.read_text("WHEEL"), re.MULTILINE)
    assert [tag[:2] for tag in tags] == [("py3", "none")]
    promised = re.fullmatch(r"manylinux_2_(\d+)_\w+", tags[0][2])
    if not promised:
        _not_a_wheel(f"built for this machine alone ({tags[0][2]})")
    used = {int(n) for path in libraries for n in re.findall(r"GLIBC_2\.(\d+)", " ".join(elf.read(path).versions))}
    assert int(promised[1]) == max(used)


def test_libraries_need_only_glibc(libraries):
    """The binding, which is loaded after torch, also torch and its C++ runtime, of a version that torch asks for."""
    for path in libraries:
        library = elf.read(path)
        assert library.needed
        own = {other.name for other in libraries}
        foreign = {name for name in library.needed if name not in own and not GLIBC_PARTS.fullmatch(name)}
        kinds = {version.partition("_")[0] for version in library.versions}
        if path.name == "libflashwave_torch.so":
            assert foreign == {"libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1"}, path
            assert kinds <= {"GLIBC", "GLIBCXX", "CXXABI", "GCC"}, path
            newest = max(int(n) for n in re.findall(r"GLIBCXX_3\.4\.(\d+)", " ".join(library.versions)))
            assert newest <= 22, path
        else:
            assert foreign == set() and kinds == {"GLIBC"}, path


def test_libraries_are_stripped(libraries):
    for path in libraries:
        assert [name for name in elf.read(path).sections if name.startswith((".debug", ".symtab"))] == [], path


def test_an_exception_inside_the_library_is_caught(wheel):
    """The static C++ runtime finds its own unwind tables: here when no thread can be started for lack of memory."""
    code = """
import ctypes, resource, flashwave
from flashwave import _library as fw
rows = 256
data = (ctypes.c_float * (rows * 64))(*[i % 7 for i in range(rows * 64)])
out = (ctypes.c_float * (rows * 64))()
a = fw.new_attention()
a.batch, a.seqlen_q, a.seqlen_k, a.heads_q, a.heads_k, a.dim_qk, a.dim_v = 1, rows, rows, 1, 1, 64, 64
for tensor, buffer in ((a.q, data), (a.k, data), (a.v, data), (a.o, out)):
    tensor.data, tensor.stride[:], tensor.dtype = ctypes.addressof(buffer), (rows * 64, 64, 64, 1), fw.F32
one = fw.new_exec()
one.num_threads = 1
fw.check(fw.lib.fw_forward(fw.device("cpu"), ctypes.addressof(a), ctypes.addressof(one)))
alone = bytes(out)
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (6 << 20),) * 2)  # less than a thread's stack
one.num_threads = 4
fw.check(fw.lib.fw_forward(fw.device("cpu"), ctypes.addressof(a), ctypes.addressof(one)))
threads = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Threads:")]
print(threads == ["1"], bytes(out) == alone)
"""
    assert run_python(code).split() == ["True", "True"]


def test_the_command_line(wheel):
    """`flashwave`, which pip puts beside python."""
    command = Path(sys.executable).parent / "flashwave"
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and said.stdout.split() == ["flashwave", flashwave.__version__]
    wrong = subprocess.run([command, "check", "sq=no"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "sq" in wrong.stderr
    checked = subprocess.run([command, "check", "sq=8", "--device", "cpu"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and "1 passed, 0 failed" in checked.stdout + checked.stderr


def test_metadata_reads_well_on_an_index(wheel):
    """Links and pictures that are relative would lead nowhere there."""
    classifiers = wheel.metadata.get_all("Classifier")
    assert "Programming Language :: Python :: 3.9" in classifiers and "Typing :: Typed" in classifiers
    text = wheel.metadata.get_payload() or wheel.metadata["Description"]
    assert "flash_attn_func" in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []


def test_import_leaves_torch_alone(wheel):
    assert run_python("import flashwave, sys; print('torch' in sys.modules, flashwave.__version__)").split() == [
        "False",
        flashwave.__version__,
    ]


def test_import_is_quick(wheel):
    """CPU time of the import and of the first name that needs torch, when torch is already there."""
    code = (
        "import time, torch; start = time.process_time(); "
        "import flashwave; flashwave.flash_attn_func; print(1e3 * (time.process_time() - start))"
    )
    run_python(code)  # writes the bytecode
    times = [float(run_python(code)) for _ in range(3)]
    assert statistics.median(times) < IMPORT_BUDGET_MS, times


def test_shim(wheel):
    """A wheel of Python files alone can be imported from as it is."""
    shim = os.environ.get("FLASHWAVE_TEST_SHIM")
    if not shim:
        pytest.skip("FLASHWAVE_TEST_SHIM names no wheel")
    code = f"""
import sys
sys.path.insert(0, {shim!r})
import importlib.metadata, flash_attn, flash_attn_2_cuda, flashwave
from flash_attn.bert_padding import unpad_input
print(importlib.metadata.version("flash_attn") == flash_attn.__version__)
print(flash_attn.flash_attn_func is flashwave.flash_attn_func)
"""
    assert run_python(code).split() == ["True", "True"]
