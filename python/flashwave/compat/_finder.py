"""The import hook of `flashwave.compat`: aliases of modules, the distribution's metadata, callbacks after imports."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable

FLASH_ATTN_VERSION = "2.8.3"  # of the flash-attn whose interface this is; TransformerEngine takes none from 2.8.4 on

_stated = FLASH_ATTN_VERSION  # what programs are told; `install` may be asked to say another

ALIASES = ("flash_attn", "flash_attn_2_cuda")
_TARGET = "flashwave.compat."


def state_version(version: str | None) -> None:
    """The version to be told from now on: None for that of the interface."""
    global _stated
    if version is not None and _parts(version) > _parts(FLASH_ATTN_VERSION):
        raise ValueError(f"version: the interface is that of flash-attn {FLASH_ATTN_VERSION}, not {version}")
    _stated = version or FLASH_ATTN_VERSION


def stated_version() -> str:
    return _stated


def states_at_least(version: str) -> bool:
    return _parts(_stated) >= _parts(version)


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ValueError(f'version: must be numbers as in "2.6.3", got {version!r}') from None


class AliasFinder(importlib.abc.MetaPathFinder):
    """Finds `flash_attn.x` as `flashwave.compat.flash_attn.x`."""

    def __init__(self, after_import: dict[str, Callable]):
        self.after_import = after_import
        self.offers_distribution = False

    def find_spec(self, fullname: str, path=None, target=None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in ALIASES:
            original = importlib.util.find_spec(_TARGET + fullname)
            if original is None:
                return None
            return importlib.machinery.ModuleSpec(
                fullname,
                _AliasLoader(_TARGET + fullname),
                origin=original.origin,
                is_package=original.submodule_search_locations is not None,
            )
        if fullname in self.after_import:
            return self._watched_spec(fullname, path, target)
        return None

    def _watched_spec(self, fullname: str, path, target) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _WatchingLoader(spec.loader, self.after_import[fullname])
                return spec
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()) -> Iterable:  # noqa: B008
        """importlib.metadata asks every finder of sys.meta_path."""
        name = context.name
        if self.offers_distribution and (name is None or name.lower().replace("_", "-") == "flash-attn"):
            yield _Distribution()


class _AliasLoader(importlib.abc.Loader):
    """Hands out the module that already exists, so that there is one object under both names."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec):
        module = importlib.import_module(self.name)
        self.original_spec = module.__spec__
        return module

    def exec_module(self, module) -> None:
        # The import system has put the alias's spec on the module; its own must stay, or relative imports break.
        module.__spec__ = self.original_spec


class _WatchingLoader(importlib.abc.Loader):
    """Runs a callback once the module it loads is complete, then leaves no trace."""

    def __init__(self, loader, callback: Callable):
        self.loader = loader
        self.callback = callback

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.callback(module)


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {_stated}\n"
        return "\n".join(ALIASES) if filename == "top_level.txt" else None

    def locate_file(self, path):
        return importlib.util.find_spec("flashwave.compat").submodule_search_locations[0]
