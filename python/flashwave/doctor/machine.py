"""What is there: files, versions, devices, drivers. Computes nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from .. import _library

# Of the libraries that flashwave loads where it finds them: the driver's or runtime's file, and where it comes from.
RUNTIMES = {
    "libcuda": "the NVIDIA driver (libcuda.so.1)",
    "libamdhip64": "ROCm's HIP runtime (libamdhip64.so), or the one inside PyTorch for ROCm",
}
DISTRIBUTIONS = ("torch", "triton", "pytorch-triton-rocm", "numpy", "ml_dtypes", "transformers", "flash-attn")
VARIABLES = re.compile(
    r"^(FLASHWAVE_|FLASH_ATTENTION_|OMP_|MKL_|ONEDNN_|CUDA_VISIBLE|HIP_VISIBLE|ROCR_VISIBLE|HSA_OVERRIDE|TRITON_)"
)


def loaded(name: str) -> str | None:
    """The file from which a shared library of this process comes. libcuda is the driver, libcudart is not."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split(None, 5)[5] for line in lines if line.count(" ") > 4 and "/" in line}
    return next((path for path in sorted(paths) if Path(path).name.startswith(f"{name}.so")), None)


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """Everything that can be said without computing."""
    devices = _library.devices()  # loads what drivers there are
    found: dict[str, Any] = {
        "flashwave": {
            "version": _library.version(),
            "package": str(Path(__file__).resolve().parents[1]),
            "library": None if _library.path is None else str(_library.path.resolve()),
            "torch binding": _binding(),
            "kernels": _library.build_notes(),
        },
        "system": {
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "platform": platform.platform(),
            "libc": " ".join(platform.libc_ver()) or "unknown",
            "executable": sys.executable,
        },
        "versions": {name: version for name in DISTRIBUTIONS if (version := version_of(name))},
        "runtimes": {name: loaded(name) for name in RUNTIMES},
        "devices": devices,
        "variables": {name: os.environ[name] for name in sorted(os.environ) if VARIABLES.match(name)},
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = _torch_facts()
    return found


def _binding() -> str | None:
    """The operators in C++, where there are some: the file beside the library."""
    found = _library.beside("libflashwave_torch.so")
    return None if found is None else str(found.resolve())


def _torch_facts() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {
        "built for": f"CUDA {torch.version.cuda}" if torch.version.cuda else
                     f"ROCm {torch.version.hip}" if torch.version.hip else "CPU",
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu"],
    }  # fmt: skip
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found["devices"].append(f"cuda:{index}")
            properties = torch.cuda.get_device_properties(index)
            arch = getattr(properties, "gcnArchName", None) or f"sm_{properties.major}{properties.minor}"
            found[f"cuda:{index}"] = f"{properties.name}, {arch}, {properties.total_memory >> 20} MiB"
    return found


def missing(found: dict[str, Any]) -> list[str]:
    """What is not there and how to get it, for what a user may expect to be used."""
    lines = []
    torch = found.get("torch")
    versions = found["versions"]
    kinds = {device["kind"] for device in found["devices"]}
    if found["flashwave"]["library"] is None:
        lines.append(
            f"the library: {_library.why_no_library}; PyTorch operations compute every attention, slowly. `make wheel` "
            "makes a package that has it, FLASHWAVE_LIBRARY names one that lies elsewhere"
        )
    for note in found["flashwave"]["kernels"]:
        if "left out" in note and {"AMD": "hip", "NVIDIA": "cuda"}[note.split()[0]] in kinds:
            lines.append(f"kernels of this machine's GPU, in this build: {note}")
    if torch is None and "numpy" not in versions:
        lines.append("NumPy and PyTorch: flashwave's functions need one of them: pip install flashwave[torch]")
    elif torch is None:
        lines.append("PyTorch: only flashwave.arrays works without it: pip install flashwave[torch]")
    elif "error" in torch:
        lines.append(f"a PyTorch that can be imported: {torch['error']}")
    nodes = {"/dev/kfd": ("hip", "libamdhip64"), "/dev/nvidiactl": ("cuda", "libcuda")}
    for node, (kind, name) in nodes.items():
        if os.path.exists(node) and kind not in kinds:
            what = RUNTIMES[name]
            where = f"it is {found['runtimes'][name]}, which" if found["runtimes"][name] else "it"
            lines.append(f"{what}: {node} is there, so there is a GPU, but {where} gave no device")
    if torch and "error" not in torch:
        on_torch = len(torch["devices"]) > 1
        if kinds & {"cuda", "hip"} and not on_torch:
            lines.append(
                f"a PyTorch for the GPU: this one is built for {torch['built for']}; pytorch.org names the right index"
            )
        if on_torch and not any(name in versions for name in ("triton", "pytorch-triton-rocm")):
            lines.append("Triton: GPUs for which the library has only its slow path go to it: pip install triton")
    if not kinds & {"cuda", "hip"}:
        lines.append("a GPU that flashwave can use: none was found; everything runs on the CPU")
    for device, parts in found.get("checks", {}).items():
        others = [line for what, lines in parts.items() if what != "flashwave" for line in lines]
        if device == "cpu" and any("SIGILL" in line.get("error", "") for line in others):
            lines.append(
                "a torch that suits this CPU: its own attention dies of an illegal instruction, as oneDNN does on "
                "machines that promise AMX and do not have it: export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
            )
    return lines
