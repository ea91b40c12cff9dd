"""What a shared library asks of the system, read from the file itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_DYNAMIC, _VERSION_NEEDS = 6, 0x6FFFFFFE  # types of sections
_NEEDED = 1  # tag of a dynamic entry


class Library(NamedTuple):
    sections: list[str]
    needed: list[str]  # other libraries
    versions: set[str]  # of symbols of other libraries: "GLIBC_2.17"


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _version_needs(data: bytes, section: _Section, strings: int) -> Iterator[str]:
    library = section.offset
    for _ in range(section.info):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, library)
        need = library + first
        for _ in range(count):
            _, _, _, name, next_need = struct.unpack_from("<IHHII", data, need)
            yield _text(data, strings + name)
            need += next_need
        library += following


def read(path: Path) -> Library:
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", f"{path} is no 64-bit little-endian ELF file"
    table = struct.unpack_from("<Q", data, 40)[0]
    entry_size, count, names = struct.unpack_from("<HHH", data, 58)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size)) for i in range(count)]
    needed: list[str] = []
    versions: set[str] = set()
    for section in sections:
        strings = sections[section.link].offset
        if section.type == _DYNAMIC:
            entries = struct.iter_unpack("<QQ", data[section.offset : section.offset + section.size])
            needed += [_text(data, strings + value) for tag, value in entries if tag == _NEEDED]
        elif section.type == _VERSION_NEEDS:
            versions |= set(_version_needs(data, section, strings))
    return Library([_text(data, sections[names].offset + s.name) for s in sections], needed, versions)
