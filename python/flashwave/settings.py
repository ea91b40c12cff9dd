"""Environment variables of the package. Each is read when it is needed, so a program may set it at any time.

docs/python.md says what each does on each device; the library reads others itself (docs/cli.md).
"""

from __future__ import annotations

import os
import sys


def _is_on(name: str) -> bool:
    return os.environ.get(name, "0").strip().lower() in ("1", "true", "on", "yes")


def debug() -> bool:
    """FLASH_ATTENTION_DEBUG=1: say on stderr what every call runs. The library prints its own plans."""
    return _is_on("FLASH_ATTENTION_DEBUG")


def deterministic() -> bool:
    """FLASH_ATTENTION_INTERNAL_DETERMINISTIC=1: as deterministic=True in every call."""
    return _is_on("FLASH_ATTENTION_INTERNAL_DETERMINISTIC")


def performance_mode() -> bool:
    """FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE=1: on AMD GPUs, products of bf16 operands for 16-bit tensors."""
    return _is_on("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE")


def round_toward_zero() -> bool:
    """FLASH_ATTENTION_INTERNAL_USE_RTZ=1: on AMD GPUs, operands of bf16 products are rounded toward zero."""
    return _is_on("FLASH_ATTENTION_INTERNAL_USE_RTZ")


def say(line: str) -> None:
    """One line of debug output, in one write."""
    sys.stderr.write(f"flashwave: {line}\n")
