"""Gives a wheel the manylinux tag that its libraries deserve: the newest version of glibc whose symbols they use. A
wheel that needs something that is not part of glibc, or for which there is no `readelf`, keeps the tag of this machine.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

GLIBC_PARTS = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+")
# Loaded where torch is: it may need torch and the C++ runtime of torch.
WITH_TORCH = {"libflashwave_torch.so": ("libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1")}


def _readelf(option: str, path: str) -> str:
    return subprocess.run(["readelf", option, path], check=True, capture_output=True, text=True).stdout


def foreign_libraries(path: str, own: set[str]) -> list[str]:
    """What the file needs that is neither part of glibc nor in the wheel."""
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", _readelf("--dynamic", path))
    known = {*own, *WITH_TORCH.get(Path(path).name, ())}
    return [name for name in needed if not GLIBC_PARTS.fullmatch(name) and name not in known]


def newest_glibc(path: str) -> int:
    """The 27 of GLIBC_2.27."""
    return max(
        (int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", _readelf("--version-info", path))), default=0
    )


def machine(path: str) -> str:
    """What the file is compiled for, which need not be this machine."""
    with open(path, "rb") as file:
        number = int.from_bytes(file.read(20)[18:20], "little")  # e_machine of the ELF header
    return {62: "x86_64", 183: "aarch64"}.get(number, platform.machine())


def _programs(wheel: Path, folder: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if archive.read(name)[:4] == b"\x7fELF"]
        return [archive.extract(name, folder) for name in names]


def tag(wheel: Path) -> Path:
    if not shutil.which("readelf"):
        print("flashwave: no readelf (binutils): the wheel gets no manylinux tag", file=sys.stderr)
        return wheel
    minor = 17  # manylinux2014; nobody asks for older
    with tempfile.TemporaryDirectory() as folder:
        programs = _programs(wheel, folder)
        for path in programs:
            foreign = foreign_libraries(path, {Path(program).name for program in programs})
            if foreign:
                print(f"flashwave: no manylinux tag: {Path(path).name} needs {', '.join(foreign)}", file=sys.stderr)
                return wheel
            minor = max(minor, newest_glibc(path))
        machines = {machine(path) for path in programs} or {platform.machine()}
    if len(machines) > 1:
        raise RuntimeError(f"the libraries of {wheel.name} are of several machines: {', '.join(sorted(machines))}")
    name = f"manylinux_2_{minor}_{machines.pop()}"
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", name, str(wheel)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return wheel.with_name(made[-1])
