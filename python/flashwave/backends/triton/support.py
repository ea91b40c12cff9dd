"""Whether Triton is there and what it can run on. Imports nothing of Triton until it is asked."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Problem

_OLDEST = (3, 2)
WIDEST_ROW = 1 << 24  # elements from row to row: 128 rows must be within 31 bits


@functools.cache
def why_no_triton() -> str | None:
    """None if Triton can be used. A Triton that breaks while it is imported is as good as none."""
    try:
        import triton.language

        import triton

        version = tuple(int(part) for part in triton.__version__.split("+")[0].split(".")[:2])
    except ImportError as error:
        return f"Triton is not installed ({error})"
    except Exception as error:
        return f"Triton cannot be imported: {type(error).__name__}: {error}"
    if version < _OLDEST:
        return f"Triton {triton.__version__} is older than {_OLDEST[0]}.{_OLDEST[1]}"
    try:
        from . import launch  # noqa: F401
    except Exception as error:
        return f"Triton {triton.__version__} does not take the kernels: {type(error).__name__}: {error}"
    return None


def interprets() -> bool:
    """TRITON_INTERPRET=1 before Triton was imported: kernels run in Python, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").strip().lower() in ("1", "true", "on", "yes")


@functools.cache
def _family(device: torch.device) -> str | None:
    if device.type == "cpu":
        return "hopper" if interprets() else None
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        name = properties.gcnArchName.split(":")[0]
        if name in ("gfx908", "gfx90a") or name.startswith(("gfx94", "gfx95")):
            return "cdna"
        return "rdna" if name.startswith(("gfx11", "gfx12")) else None
    if properties.major < 8:
        return None
    return "hopper" if properties.major in (9, 10) else "ampere"


def family(device: torch.device) -> str:
    """The key of a table of triton_configs."""
    known = _family(device)
    if known is None:
        raise ValueError(f"Triton's kernels do not run on {device}")
    return known


def why_no_device(q: Tensor) -> str | None:
    if _family(q.device) is not None:
        return None
    if q.device.type != "cuda":
        return f"Triton runs on GPUs, and q is on {q.device}"
    properties = torch.cuda.get_device_properties(q.device)
    what = getattr(properties, "gcnArchName", "") if torch.version.hip else f"{properties.major}.{properties.minor}"
    return f"Triton's kernels are not written for {properties.name} ({what})"


def seed_on_device(problem: Problem) -> Problem:
    """The problem with the dropout's seed and offset in the memory of its tensors, side by side.

    Numbers of the CPU go there as arguments of kernels, which a capture takes, not as a copy.
    """
    state = problem.rng_state
    if state is None:
        return problem
    if state.device == problem.q.device:
        return problem if state.is_contiguous() else problem._replace(rng_state=state.contiguous())
    seed, offset = state.tolist()
    there = torch.full((2,), seed, dtype=torch.int64, device=problem.q.device)
    there[1:].fill_(offset)
    return problem._replace(rng_state=there)
