"""flashwave: exact attention on AMD GPUs, NVIDIA GPUs and CPUs.

Importing the package loads the C library and nothing else; torch is imported with the first name that needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from . import _library
from .errors import BackendRefused, FlashwaveError, InvalidArgument, NoDevice, OutOfMemory, Unsupported

__version__ = _library.version()

devices = _library.devices

_FUNCTIONS = (
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
)
_LEGACY = (
    "flash_attn_unpadded_func",
    "flash_attn_unpadded_kvpacked_func",
    "flash_attn_unpadded_qkvpacked_func",
    "flash_attn_unpadded_qkvpacked_split_func",
)
# Where each name is defined; looked up when it is first used.
_HOMES = {
    **dict.fromkeys(_FUNCTIONS, "functions"),
    **dict.fromkeys(_LEGACY, "legacy"),
    **dict.fromkeys(("attention", "explain"), "attention"),
    **dict.fromkeys(("FlashAttention", "FlashMHA"), "modules"),
    **dict.fromkeys(("RotaryEmbedding", "apply_rotary_emb", "apply_rotary_emb_kv_", "apply_rotary_emb_qkv_"), "rotary"),
    "backend": "dispatch",
    "merge_states": "pieces",
    "sdpa": "sdpa",
    **dict.fromkeys(("activate", "register_with_torch", "restore"), "replacement"),
    "Problem": "problem",
}
_MODULES = (
    "arrays",
    "backends",
    "bench",
    "compat",
    "dispatch",
    "distributed",
    "doctor",
    "functions",
    "integrations",
    "legacy",
    "modules",
    "rotary",
)


def _is_installed(name: str) -> bool:
    if name in sys.modules:  # None there: its import is to fail
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


def _usable(name: str) -> bool:
    """Whether what the name needs is installed: torch, or for `attention` NumPy."""
    return _is_installed("torch") or (name == "attention" and _is_installed("numpy"))


__all__ = [
    "BackendRefused",
    "FlashwaveError",
    "InvalidArgument",
    "NoDevice",
    "OutOfMemory",
    "Unsupported",
    "devices",
    *(name for name in _HOMES if _usable(name)),  # `from flashwave import *` takes what there is
]


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        """`attention` and `sdpa` are functions, also after `import` has bound the names to the modules of theirs."""
        if name in ("attention", "sdpa") and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = _HOMES[name]
        if not _usable(name):
            what = "PyTorch, or NumPy for arrays" if name == "attention" else "PyTorch"
            raise ModuleNotFoundError(
                f"flashwave.{name} needs {what}: pip install flashwave[torch]"
                f"{' (or flashwave[numpy])' if name == 'attention' else ''}",
                name="torch",
            )
        if name == "attention" and not _is_installed("torch"):
            home = "arrays"  # the one of these functions that also takes arrays
        module = importlib.import_module(f"{__name__}.{home}")
        value = globals()[name] = getattr(module, name)
        return value
    if name in _MODULES:
        needed = {"arrays": "numpy", "backends": None, "compat": None, "doctor": None}.get(name, "torch")
        if needed and not _is_installed(needed):
            library = {"numpy": "NumPy", "torch": "PyTorch"}[needed]
            raise ModuleNotFoundError(f"flashwave.{name} needs {library}: pip install flashwave[{needed}]", name=needed)
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
