"""Makes transformers accept flashwave as FlashAttention-2, on CPUs too.

With a GPU nothing of this is needed: transformers looks for the distribution `flash-attn` and for a device of
`torch.cuda` (which ROCm is too). Without one it says "FlashAttention2 is not available on CPU" of its own accord. Then:

* `is_flash_attn_2_available` answers True, everywhere it was imported to;
* transformers 5: "cpu" joins the supported devices of `FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]`;
* transformers 4: `PreTrainedModel._flash_attn_2_can_dispatch` skips its look at the parameters' device.

transformers may be imported before or after `install`: the finder calls `AFTER_IMPORT` for the modules concerned.
"""

from __future__ import annotations

import sys
from typing import Any

_IMPORT_UTILS = "transformers.utils.import_utils"
_FLASH_UTILS = "transformers.modeling_flash_attention_utils"
_MODELING = "transformers.modeling_utils"

_undo: list[tuple[Any, str, Any]] = []  # (object, attribute or key, value before)


def accept(names_distribution: bool) -> None:
    """Adapt what is already imported of transformers."""
    utils = sys.modules.get(_IMPORT_UTILS)
    if utils is not None and names_distribution:
        # Read once, when transformers was imported: before there was such a distribution.
        mapping = getattr(utils, "PACKAGE_DISTRIBUTION_MAPPING", None)
        if mapping is not None and "flash_attn" not in mapping:
            _set(mapping, "flash_attn", ["flash-attn"])
    for name, adapt in AFTER_IMPORT.items():
        if name in sys.modules:
            adapt(sys.modules[name])
    _forget_answers()


def restore() -> None:
    while _undo:
        holder, key, value = _undo.pop()
        if isinstance(holder, dict):
            holder.pop(key, None) if value is None else holder.update({key: value})
        else:
            setattr(holder, key, value)
    _forget_answers()


def _is_flash_attn_2_available(*_args, **_kwargs) -> bool:
    return True


def _adapt_import_utils(module) -> None:
    original = getattr(module, "is_flash_attn_2_available", None)
    if original is None or original is _is_flash_attn_2_available or _has_gpu():
        return
    for name, holder in list(sys.modules.items()):
        # vars(): getattr would make transformers' lazy modules import everything.
        in_transformers = name.partition(".")[0] == "transformers"
        if in_transformers and vars(holder).get("is_flash_attn_2_available") is original:
            _set(holder, "is_flash_attn_2_available", _is_flash_attn_2_available)


def _adapt_flash_utils(module) -> None:
    entry = getattr(module, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}).get(2)
    if entry is None or _has_gpu() or any(name == "cpu" for _, name in entry["supported_devices"]):
        return
    _set(entry, "general_availability_check", _is_flash_attn_2_available)
    _set(entry, "supported_devices", (*entry["supported_devices"], (_is_flash_attn_2_available, "cpu")))


def _adapt_modeling(module) -> None:
    model = getattr(module, "PreTrainedModel", None)
    original = getattr(model, "_flash_attn_2_can_dispatch", None)
    if original is None or getattr(original, "_flashwave", False) or _has_gpu():
        return

    def can_dispatch(self, is_init_check: bool = False) -> bool:
        return original(self, is_init_check=True)  # the later check only adds that a parameter on a CPU is an error

    can_dispatch._flashwave = True
    _set(model, "_flash_attn_2_can_dispatch", can_dispatch)


AFTER_IMPORT = {_IMPORT_UTILS: _adapt_import_utils, _FLASH_UTILS: _adapt_flash_utils, _MODELING: _adapt_modeling}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _set(holder: Any, key: str, value: Any) -> None:
    if isinstance(holder, dict):
        _undo.append((holder, key, holder.get(key)))
        holder[key] = value
    else:
        _undo.append((holder, key, vars(holder)[key]))
        setattr(holder, key, value)


def _forget_answers() -> None:
    """transformers caches what it found; the functions it loaded last, and which implementation they were for."""
    utils = sys.modules.get(_IMPORT_UTILS)
    for name in ("is_flash_attn_2_available", "is_flash_attn_greater_or_equal", "is_flash_attn_greater_or_equal_2_10"):
        clear = getattr(getattr(utils, name, None), "cache_clear", None)
        if clear is not None:
            clear()
    flash = sys.modules.get(_FLASH_UTILS)
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_pad_fn", "_unpad_fn"):
        if flash is not None and hasattr(flash, name):
            setattr(flash, name, None)
