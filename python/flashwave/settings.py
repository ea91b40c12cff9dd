"""Environment variables of the package. Each is read when it is needed, so a program may set it at any time.

docs/python.md says what each does on each device; the library reads others itself (docs/cli.md).
"""

from __future__ import annotations

import os
import sys
from typing import Any

# The dictionary behind os.environ, which itself takes a microsecond, a tenth of a call, to say that one is not set.
_RAW: Any = getattr(os.environ, "_data", None) if os.name == "posix" else None
VARIABLES: Any = os.environ if _RAW is None else _RAW


def variable(name: str) -> Any:
    """What a variable is called in VARIABLES."""
    return name if _RAW is None else os.fsencode(name)


def _get(name: str) -> str:
    """The variable's text, "" where it is not set."""
    return os.environ[name].strip() if variable(name) in VARIABLES else ""


def _is_on(name: str) -> bool:
    return _get(name).lower() in ("1", "true", "on", "yes")


def backend() -> str:
    """FLASHWAVE_BACKEND=name: the backend that every attention takes, or "" for a choice by the rules."""
    return _get("FLASHWAVE_BACKEND")


def kernel() -> str:
    """FLASHWAVE_FORCE_KERNEL=name: the library's kernel to run. The library reads it too."""
    return _get("FLASHWAVE_FORCE_KERNEL")


def binding() -> bool:
    """FLASHWAVE_BINDING=0: torch's operators in Python, as on torch before 2.9, instead of libflashwave_torch.so."""
    return _get("FLASHWAVE_BINDING").lower() not in ("0", "false", "off", "no")


def triton_on_amd() -> bool:
    """FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE: on AMD GPUs Triton's kernels before the library's."""
    return _is_on("FLASH_ATTENTION_TRITON_AMD_ENABLE")


def debug() -> bool:
    """FLASH_ATTENTION_DEBUG=1: say on stderr what every call runs. The library prints its own plans."""
    return _is_on("FLASH_ATTENTION_DEBUG")


def deterministic() -> bool:
    """FLASH_ATTENTION_INTERNAL_DETERMINISTIC=1: as deterministic=True in every call."""
    return _is_on("FLASH_ATTENTION_INTERNAL_DETERMINISTIC")


def is_deterministic(q: Any) -> bool:
    """Whether a call on a tensor is to be deterministic though its caller does not say so."""
    torch = sys.modules["torch"]
    return torch.are_deterministic_algorithms_enabled() or (not q.is_cpu and deterministic())


def performance_mode() -> bool:
    """FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE=1: on AMD GPUs, products of bf16 operands for 16-bit tensors.

    Of PyTorch operations: the library reads the variable itself (docs/amd.md).
    """
    return _is_on("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE")


def round_toward_zero() -> bool:
    """FLASH_ATTENTION_INTERNAL_USE_RTZ=1: on AMD GPUs, operands of bf16 products are rounded toward zero."""
    return _is_on("FLASH_ATTENTION_INTERNAL_USE_RTZ")


def say(line: str) -> None:
    """One line of debug output, in one write."""
    sys.stderr.write(f"flashwave: {line}\n")
