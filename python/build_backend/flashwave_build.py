"""How pip and `python -m build` make the package: scikit-build-core's backend, and around it what every wheel needs
however it is made: the compiler for NVIDIA GPUs from PyPI, the same bits for the same sources, and a manylinux tag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import scikit_build_core.build as _core
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[2]


def _wants_nvidia() -> bool:
    return os.environ.get("FLASHWAVE_NVIDIA_TARGETS", "all").strip().lower() != "none"


def _has_nvcc() -> bool:
    return bool(shutil.which("nvcc")) or any(ROOT.glob("out/venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc"))


def _nvcc() -> list[str]:
    if not _wants_nvidia() or _has_nvcc():
        return []
    lines = (ROOT / "python" / "requirements-cuda.txt").read_text().splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def get_requires_for_build_wheel(config_settings=None):
    return [*_core.get_requires_for_build_wheel(config_settings), *_nvcc()]


def get_requires_for_build_editable(config_settings=None):
    return [*_core.get_requires_for_build_editable(config_settings), *_nvcc()]


def _prepare() -> None:
    """The environment of the build: clang where there is one (scikit-build-core would take the compiler Python was made
    with, and GCC 12 halves the speed of the CPU kernels), nvcc of the build's own requirements, and a fixed time."""
    if "CC" not in os.environ and "CXX" not in os.environ:
        for version in (22, 21, 20, 19):
            if shutil.which(f"clang-{version}") and shutil.which(f"clang++-{version}"):
                os.environ.update(CC=f"clang-{version}", CXX=f"clang++-{version}")
                break
    packaged = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    if packaged.is_dir():
        os.environ["PATH"] = f"{packaged}{os.pathsep}{os.environ['PATH']}"
    if "SOURCE_DATE_EPOCH" not in os.environ:
        time = "1600000000"  # where there is no git, or no repository
        if shutil.which("git"):
            asked = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True)
            time = asked.stdout.strip() if asked.returncode == 0 else time
        os.environ["SOURCE_DATE_EPOCH"] = time


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    from flashwave_tag import tag

    _prepare()
    name = _core.build_wheel(wheel_directory, config_settings, metadata_directory)
    return tag(Path(wheel_directory) / name).name


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _prepare()
    return _core.build_editable(wheel_directory, config_settings, metadata_directory)
