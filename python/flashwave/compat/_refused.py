"""Names of flash-attn that are not provided: an ImportError that says what to use in their place."""

from __future__ import annotations

from collections.abc import Callable


def refusal(name: str, replacement: str) -> ImportError:
    return ImportError(f"{name} is not provided by flashwave; in its place: {replacement}", name=name)


def refuse_names(module: str, names: str, replacement: str) -> Callable[[str], None]:
    """A module's __getattr__ that refuses these names, and knows no other."""
    refused = names.split()

    def missing(name: str) -> None:
        if name in refused:
            raise refusal(f"{module}.{name}", replacement)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing
