"""flash_attn 2.8, provided by flashwave: what `flash_attn` and `flash_attn.x` are after `flashwave.compat.install`."""

from __future__ import annotations

from flashwave.compat._finder import stated_version
from flashwave.functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def __getattr__(name: str):
    if name == "__version__":
        return stated_version()
    raise AttributeError(f"flash_attn (provided by flashwave) has no {name!r}; it has {', '.join(__all__)}")
