"""Makes ``import flash_attn`` mean flashwave.

    import flashwave.compat
    flashwave.compat.install()

    from flash_attn import flash_attn_func  # flashwave's

After `install`, `flash_attn`, its submodules and the raw module `flash_attn_2_cuda` resolve to the modules of this
package: one object under both names. `importlib.metadata.version("flash_attn")` answers too. Where transformers is
used on a machine without a GPU, `install` also tells it that FlashAttention-2 is available there: transformers itself
refuses `attn_implementation="flash_attention_2"` on CPUs before any attention is asked. `uninstall` undoes all of it.

The distribution in python/shim does the same without a call, for programs that cannot be changed; what it cannot do is
make transformers accept a CPU.
"""

from __future__ import annotations

import importlib.metadata
import sys

from flashwave.compat import _transformers
from flashwave.compat._finder import ALIASES, AliasFinder, state_version

__all__ = ["install", "installed", "uninstall"]

_finder = AliasFinder(after_import=_transformers.AFTER_IMPORT)


def install(*, force: bool = False, version: str | None = None) -> None:
    """Resolve `flash_attn` to flashwave from now on. Calling it again changes nothing.

    version: the flash-attn that a program was written for, "0.2.1" say, if not 2.8. `flash_attn.__version__` and the
    distribution then say so, and before 2.7 `bert_padding.unpad_input` returns four values, not five. Nothing else
    depends on it: the names of all versions are always there.

    If another flash_attn is already imported, this is refused: modules that hold its functions would keep them.
    `force=True` replaces it for later imports all the same.
    """
    foreign = _foreign_modules()
    if foreign and not force:
        raise ImportError(
            f"flash_attn is already imported from {getattr(sys.modules[foreign[0]], '__file__', None)}: call "
            "flashwave.compat.install() before the first import of it, or pass force=True to replace it for later "
            "imports"
        )
    state_version(version)
    for name in foreign:
        del sys.modules[name]
    activate()
    _transformers.accept(_finder.offers_distribution)


def uninstall() -> None:
    """Undo `install`. Modules that already imported flashwave's functions keep them."""
    state_version(None)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in _alias_names():
        if _is_ours(sys.modules[name]):
            del sys.modules[name]
    _transformers.restore()


def installed() -> bool:
    return _finder in sys.meta_path


def activate() -> None:
    """Put the aliases in place, nothing else. What the shim distribution calls from inside `import flash_attn`."""
    if installed():
        return
    try:
        importlib.metadata.version("flash_attn")
        _finder.offers_distribution = False
    except importlib.metadata.PackageNotFoundError:
        _finder.offers_distribution = True
    sys.meta_path.insert(0, _finder)


def _alias_names() -> list:
    return [name for name in sys.modules if name.partition(".")[0] in ALIASES]


def _is_ours(module) -> bool:
    return getattr(module, "__name__", "").startswith("flashwave.")


def _foreign_modules() -> list:
    return sorted(name for name in _alias_names() if not _is_ours(sys.modules[name]))
